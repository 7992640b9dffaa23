"""How the operator is set up, from its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import gethostname
from uuid import uuid4

from dapo_operator.jobs.builders.site import Site


@dataclass(frozen=True)
class Settings:
    """`namespaces` empty: all of them. `metadata_url` None: progress, stalls and guards are not watched. `lease` empty:
    no election, for a single replica. `identity` must be of one process alone."""

    namespaces: tuple[str, ...] = ()
    metadata_url: str | None = None
    site: Site = field(default_factory=Site)
    log_format: str = "json"
    log_level: str = "INFO"
    lease: str = "dapo-operator"
    lease_namespace: str | None = None
    identity: str = ""
    telemetry_port: int = 9090
    requests_per_second: float = 100.0
    requests_burst: int = 200

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """The settings of an environment; variables are listed in docs/operator.md."""
        names = environment.get("DAPO_NAMESPACES", "").replace(",", " ").split()
        defaults = Site()
        site = Site(
            image=environment.get("DAPO_TRAINER_IMAGE", defaults.image),
            image_pull_policy=environment.get("DAPO_IMAGE_PULL_POLICY", defaults.image_pull_policy),
            topology_key=environment.get("DAPO_TOPOLOGY_KEY", defaults.topology_key),
            dashboard_url=environment.get("DAPO_DASHBOARD_URL", defaults.dashboard_url).rstrip("/"),
            coscheduler=environment.get("DAPO_COSCHEDULER", defaults.coscheduler),
        )
        return cls(
            namespaces=tuple(names),
            metadata_url=environment.get("DAPO_METADATA_URL") or None,
            site=site,
            log_format=environment.get("DAPO_LOG_FORMAT", cls.log_format),
            log_level=environment.get("DAPO_LOG_LEVEL", cls.log_level),
            lease=environment.get("DAPO_LEASE", cls.lease),
            lease_namespace=environment.get("DAPO_LEASE_NAMESPACE") or None,
            identity=environment.get("DAPO_IDENTITY") or f"{gethostname()}-{uuid4().hex[:8]}",
            telemetry_port=int(environment.get("DAPO_TELEMETRY_PORT", cls.telemetry_port)),
            requests_per_second=float(environment.get("DAPO_REQUESTS_PER_SECOND", cls.requests_per_second)),
            requests_burst=int(environment.get("DAPO_REQUESTS_BURST", cls.requests_burst)),
        )
