"""Experiment trackers that a run's metrics are mirrored to: `spec.trackers`."""
