"""The Kubernetes operator: it creates the pods of DAPOJobs, restarts them and reports their status."""
