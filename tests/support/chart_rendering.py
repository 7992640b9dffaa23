"""The chart as Helm renders it."""

import json
import subprocess
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from patience import patient
from servers.tools import tool

CHART: Final = Path(__file__).parents[2] / "charts" / "dapo"
NAMESPACE: Final = "dapo-system"
Object = dict[str, Any]
TEAMS: Final[list[Object]] = [{"name": "team-a", "create": True}, {"name": "team-b", "create": True}]

# What people install: each is rendered, checked and sent to a real API server.
INSTALLATIONS: Final[dict[str, Object]] = {
    "cluster-wide": {"operator": {"clusterWide": True}},
    "teams": {"jobNamespaces": TEAMS, "demo": {"namespace": "team-a"}},
    "watching nodes": {"jobNamespaces": TEAMS, "operator": {"watchNodes": True}},
    "external stores": {
        "jobNamespaces": TEAMS,
        "postgres": {"embedded": False, "existingSecret": "database"},
        "minio": {"embedded": False, "existingSecret": "objects"},
    },
    "everything": {
        "jobNamespaces": TEAMS,
        "image": {"prefix": "registry.example.org/dapo/", "tag": "1.2.3", "pullSecrets": ["registry"]},
        "operator": {
            "clusterWide": True,
            "gangSchedulers": ["volcano", "coscheduling"],
            "env": [{"name": "TZ", "value": "UTC"}],
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
        },
        "dashboard": {
            "replicas": 2,
            "url": "https://dapo.example.org",
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "dapo.example.org",
                "tlsSecretName": "certificate",
                "annotations": {"example.org/a": "b"},
            },
            "oidc": {
                "enabled": True,
                "metadataUrl": "https://login.example.org/.well-known/openid-configuration",
                "secretName": "login",
            },
            "access": {"groups": {"math": ["team-a"]}, "everyone": ["team-b"]},
        },
        "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
        "alerts": {
            "replicas": 2,
            "receivers": [
                {"name": "chat", "secretName": "chat", "slack": {"urlFile": "url"}, "guards": ["NonFinite"]},
                {
                    "name": "mail",
                    "secretName": "smtp",
                    "namespaces": ["team-a"],
                    "email": {
                        "host": "smtp.example.org",
                        "from": "dapo@example.org",
                        "to": ["team@example.org"],
                        "username": "dapo",
                        "passwordFile": "password",
                    },
                },
                {"name": "hook", "webhook": {"url": "https://hook.example.org"}, "resolved": False},
            ],
        },
        "postgres": {"storage": {"className": "fast"}},
        "minio": {"storage": {"className": "large"}},
        "stores": {"keep": False, "retention": {"thinAfterDays": 30, "maxPoints": 500_000_000, "apply": True}},
        "podSecurity": {"user": "assigned"},
        "jobs": {
            "podTemplate": {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
            "trainer": {"podTemplate": {"spec": {"runtimeClassName": "nvidia"}}},
        },
    },
    "least": {
        "crds": {"enabled": False},
        "dashboard": {"enabled": False},
        "networkPolicies": {"enabled": False},
        "podDisruptionBudgets": {"enabled": False},
        "operator": {"clusterWide": True, "replicas": 1},
    },
}


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Helm's answer, whatever it is."""
    return subprocess.run([str(tool("helm")), *arguments], capture_output=True, text=True, timeout=patient(120))


def _template(values: Object, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            str(tool("helm")),
            "template",
            "dapo",
            str(CHART),
            "--namespace",
            NAMESPACE,
            "--kube-version=1.34.0",
            *options,
            "-f",
            "-",
        ],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=patient(120),
    )


def rendered(name: str) -> list[Object]:
    """All objects of one of INSTALLATIONS."""
    return deepcopy(_rendered(name))


@cache
def _rendered(name: str) -> list[Object]:
    return with_values(INSTALLATIONS[name])


def with_values(values: Object, *options: str) -> list[Object]:
    """All objects of an installation with these values; `options` are Helm's."""
    answer = _template(values, *options)
    assert answer.returncode == 0, answer.stderr
    return [each for each in yaml.safe_load_all(answer.stdout) if each]


def refusal(values: Object) -> str:
    """What Helm says against values."""
    answer = _template(values)
    assert answer.returncode != 0, "accepted"
    return answer.stderr


def environment(objects: list[Object], deployment: str) -> dict[str, str]:
    """The variables of a Deployment's only container; empty for those that come from elsewhere."""
    [container] = pod_templates(objects)[f"Deployment/{deployment}"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Pod templates by kind and name of what holds them."""
    found = {}
    for each in objects:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        template = each if each["kind"] == "Pod" else spec.get("template")
        if template:
            found[f"{each['kind']}/{each['metadata']['name']}"] = {**template, "kind": "Pod", "apiVersion": "v1"}
    return found


def named(objects: list[Object], kind: str, name: str, namespace: str | None = None) -> Object:
    """The one object of this kind and name."""
    [found] = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
        and (namespace is None or each["metadata"].get("namespace") == namespace)
    ]
    return found
