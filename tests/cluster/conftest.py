"""The Kubernetes of these tests is started once."""

from servers.cluster_fixtures import cluster, kubernetes, namespace

__all__ = ["cluster", "kubernetes", "namespace"]
