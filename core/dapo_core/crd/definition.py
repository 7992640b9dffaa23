"""The CustomResourceDefinition of DAPOJob, generated from the models."""

from typing import Any, Final

import yaml

from dapo_core.crd.openapi import Schema, structural
from dapo_core.jobspec.job import DAPOJobSpec
from dapo_core.jobspec.rules import CEL_RULES
from dapo_core.naming import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from dapo_core.run.status import DAPOJobStatus

# Client-side apply keeps the whole CRD in an annotation of at most 256 KiB.
MAX_BYTES: Final = 200_000

# Name, type, path, and 1 for those of `kubectl get -o wide`.
_COLUMNS: Final = [
    ("Status", "string", ".status.phase", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Pods", "string", ".status.pods", 0),
    ("Step", "integer", ".status.progress.step", 0),
    ("Reward", "number", ".status.progress.reward", 0),
    ("Entropy", "number", ".status.progress.entropy", 0),
    ("Length", "number", ".status.progress.responseLength", 0),
    ("ETA", "string", ".status.progress.eta", 0),
    ("Restarts", "string", ".status.restarts", 0),
    ("Attempt", "integer", ".status.attempt", 0),
    ("Queue", "string", ".spec.runPolicy.gang.queue", 1),
    ("GPUs", "integer", ".status.gpus", 1),
    ("Checkpoint", "integer", ".status.checkpoint.step", 1),
    ("Last Step", "date", ".status.progress.stepAt", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
]


def crd() -> dict[str, Any]:
    """The CRD as a mapping: structural schema, CEL rules, printer columns, status and scale."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def crd_yaml() -> str:
    """The CRD as the text of a YAML file."""
    header = "# Generated from dapo_core.jobspec; do not edit.\n"
    return header + yaml.dump(crd(), sort_keys=False, width=120, allow_unicode=True, Dumper=_Dumper)


class _Dumper(yaml.SafeDumper):
    """SafeDumper without anchors, which are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.topology.rollout.replicas",
                "statusReplicasPath": ".status.rolloutReplicas",
                "labelSelectorPath": ".status.rolloutSelector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": wide} if wide else {})}
            for name, kind, path, wide in _COLUMNS
        ],
    }


def _root() -> Schema:
    root: Schema = {
        "type": "object",
        "description": "DAPOJob is one reinforcement-learning run of a language model.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Kubernetes' own limit, repeated so that the API server can estimate the cost of the rule on the name.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": structural(DAPOJobSpec, "spec"),
            "status": structural(DAPOJobStatus, "status"),
        },
    }
    _default_replicas(root)
    for rule in CEL_RULES:
        _schema_at(root, rule.path).setdefault("x-kubernetes-validations", []).append(rule.entry())
    return root


def _default_replicas(root: Schema) -> None:
    """The only defaults in the CRD: without the number, requests to the scale subresource fail.

    All others are filled in when a job is read, so that a newer platform's defaults apply to jobs that set no value.
    """
    _schema_at(root, "spec.topology")["default"] = {}
    _schema_at(root, "spec.topology.rollout")["default"] = {}
    _schema_at(root, "spec.topology.rollout.replicas")["default"] = 1


def _schema_at(root: Schema, path: str) -> Schema:
    here = root
    for part in filter(None, path.split(".")):
        here = here["properties"][part.removesuffix("[]")]
        here = here["items"] if part.endswith("[]") else here
    return here
