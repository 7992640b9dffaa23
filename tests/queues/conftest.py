"""A control plane with the real controllers of gang schedulers: `make queues`."""

from servers.cluster_fixtures import cluster

__all__ = ["cluster"]
