"""The Kubernetes operator. Not built yet; the CRD, the failure policy and the status models are in core."""
