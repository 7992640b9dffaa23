"""What the operator tells those who run it: numbers for Prometheus, health for probes, logs for programs."""
