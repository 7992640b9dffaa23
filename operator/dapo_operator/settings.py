"""The operator's settings, from its environment variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import gethostname
from typing import Any, Literal
from uuid import uuid4

from dapo_core.naming import ROLES, Role
from dapo_operator.jobs.builders.pod_template import refused_of_site
from dapo_operator.jobs.gangs.schedulers import QUEUEING
from dapo_operator.jobs.job_objects import Site


@dataclass(frozen=True)
class OperatorSettings:
    """The variable of each field stands in its comment; docs/operator.md lists them."""

    # DAPO_NAMESPACES: the namespaces to work in; empty: all, which needs a ClusterRole.
    namespaces: tuple[str, ...] = ()
    # DAPO_WATCH_NODES: `false` when the operator may not read nodes.
    watch_nodes: bool = True
    # DAPO_GANG_SCHEDULERS: those whose reservations are watched, which needs permissions; unset: all.
    gang_schedulers: tuple[str, ...] = QUEUEING
    # DAPO_METADATA_URL: the metadata store; None: progress, stalls and guards are not watched.
    metadata_url: str | None = None
    # DAPO_TRAINER_IMAGE, DAPO_IMAGE_PULL_POLICY, DAPO_TOPOLOGY_KEY, DAPO_DASHBOARD_URL, DAPO_COSCHEDULER,
    # DAPO_STATUS_DELAY_SECONDS, DAPO_POD_TEMPLATES, DAPO_POD_TEMPLATE_POLICY, DAPO_POD_USER: what applies to the pods
    # and the status of all jobs.
    site: Site = field(default_factory=Site)
    # DAPO_LOG_FORMAT: `json` for machines, `plain` for a terminal. DAPO_LOG_LEVEL: a level of Python's logging.
    log_format: str = "json"
    log_level: str = "INFO"
    # DAPO_LEASE: the name of the Lease that the replicas compete for; empty: no election, for a single replica.
    lease: str = "dapo-operator"
    # DAPO_LEASE_NAMESPACE: where the Lease is; None: the operator's own namespace.
    lease_namespace: str | None = None
    # DAPO_IDENTITY: the holder that this process writes into the Lease; must differ from every other process's. A pod's
    # UID lets a restarted container continue immediately; the default is the host name and a random part.
    identity: str = ""
    # DAPO_TELEMETRY_PORT: the TCP port of /metrics, /healthz and /readyz.
    telemetry_port: int = 9090
    # DAPO_REQUESTS_PER_SECOND, DAPO_REQUESTS_BURST: the limit of requests to the API server, on average and in a burst.
    requests_per_second: float = 100.0
    requests_burst: int = 200

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "OperatorSettings":
        """The settings in an environment. Raises ValueError when a variable that has to be a number is not one, or a
        template of DAPO_POD_TEMPLATES is not one for pods of jobs."""
        names = environment.get("DAPO_NAMESPACES", "").replace(",", " ").split()
        schedulers = environment.get("DAPO_GANG_SCHEDULERS", ",".join(QUEUEING)).replace(",", " ").split()
        if unknown := sorted(set(schedulers) - set(QUEUEING)):
            raise ValueError(f"DAPO_GANG_SCHEDULERS has {unknown[0]}; must be one of {', '.join(QUEUEING)}.")
        defaults = Site()
        site = Site(
            image=environment.get("DAPO_TRAINER_IMAGE", defaults.image),
            image_pull_policy=environment.get("DAPO_IMAGE_PULL_POLICY", defaults.image_pull_policy),
            topology_key=environment.get("DAPO_TOPOLOGY_KEY", defaults.topology_key),
            dashboard_url=environment.get("DAPO_DASHBOARD_URL", defaults.dashboard_url).rstrip("/"),
            coscheduler=environment.get("DAPO_COSCHEDULER", defaults.coscheduler),
            status_delay_seconds=float(environment.get("DAPO_STATUS_DELAY_SECONDS", defaults.status_delay_seconds)),
            pod_templates=_pod_templates(environment.get("DAPO_POD_TEMPLATES") or "{}"),
            fixed_user=environment.get("DAPO_POD_USER", "fixed") != "assigned",
            restricts_templates=environment.get("DAPO_POD_TEMPLATE_POLICY", "any") != "any",
        )
        return cls(
            namespaces=tuple(names),
            gang_schedulers=tuple(schedulers),
            watch_nodes=environment.get("DAPO_WATCH_NODES", "true") != "false",
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


def _pod_templates(text: str) -> dict[Literal["all"] | Role, dict[str, Any]]:
    """The templates of the installation. Raises ValueError with everything that is wrong with them."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("DAPO_POD_TEMPLATES must be a mapping from all, or a role, to a PodTemplateSpec.")
    if unknown := sorted(given.keys() - {"all", *ROLES}):
        names = ", ".join(unknown)
        raise ValueError(f"DAPO_POD_TEMPLATES has {names}; its keys must be one of all, {', '.join(ROLES)}.")
    problems = []
    for key, template in given.items():
        field = f"DAPO_POD_TEMPLATES.{key}"
        if not isinstance(template, dict):
            raise ValueError(f"{field} must be a mapping.")
        problems += refused_of_site(field, None if key == "all" else key, template)
    if problems:
        raise ValueError(" ".join(problem.message for problem in problems))
    return given
