"""What the operator tells those who run it: numbers for Prometheus, health for probes, logs for programs."""

from dapo_operator.telemetry.recorder import Telemetry

__all__ = ["Telemetry"]
