"""What an installation says about all jobs. Pure values; `dapo_operator.settings` reads them from the environment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """`image` is the trainer image of pods whose template names none; empty: each job has to name one.
    `topology_key` is the node label within which a role's pods are put close together. `dashboard_url` is where the
    dashboard answers, without a slash at the end; empty where there is none."""

    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    topology_key: str = "topology.kubernetes.io/zone"
    dashboard_url: str = ""
    coscheduler: str = "scheduler-plugins-scheduler"
