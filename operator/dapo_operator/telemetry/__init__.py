"""What the operator reports about itself: metrics for Prometheus, health for probes, logs as JSON."""
