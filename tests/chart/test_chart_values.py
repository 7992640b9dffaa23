"""Values: what is refused, with which words, and that schema, values and README speak of the same keys."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from chart_rendering import CHART, INSTALLATIONS, refusal

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# Mappings whose keys are the user's.
FREE = {"nodeSelector", "affinity", "annotations", "labels", "requests", "limits", "access"}


def paths(value: Any, path: str = "") -> Iterator[str]:
    for key, inner in value.items():
        yield f"{path}{key}"
        if isinstance(inner, dict) and key not in FREE:
            yield from paths(inner, f"{path}{key}.")


def schema_paths(node: Any, path: str = "") -> Iterator[str]:
    for key, inner in node.get("properties", {}).items():
        yield f"{path}{key}"
        if key not in FREE:
            yield from schema_paths(inner, f"{path}{key}.")


def test_schema_and_values_have_the_same_keys() -> None:
    only_in_schema = set(schema_paths(SCHEMA)) - set(paths(VALUES))
    assert set(paths(VALUES)) <= set(schema_paths(SCHEMA))
    # An entry of a list has no default, and a parent chart's values are not ours.
    assert {path for path in only_in_schema if not path.endswith("resources.claims")} == {"global"}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_installations_pass_the_schema(name: str) -> None:
    jsonschema.validate(INSTALLATIONS[name], SCHEMA)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"operater": {}}, id="unknown group"),
        pytest.param({"operator": {"replica": 2}}, id="unknown key"),
        pytest.param({"operator": {"replicas": 0}}, id="no operator"),
        pytest.param({"operator": {"replicas": "2"}}, id="text for a number"),
        pytest.param({"operator": {"logLevel": "debug"}}, id="log level in small letters"),
        pytest.param({"operator": {"gangSchedulers": ["none"]}}, id="a scheduler without reservations"),
        pytest.param({"image": {"pullPolicy": "Sometimes"}}, id="pull policy"),
        pytest.param({"jobNamespaces": ["team-a"]}, id="a namespace without its name field"),
        pytest.param({"jobNamespaces": [{"name": "Team_A"}]}, id="no name of a namespace"),
        pytest.param({"jobNamespaces": [{"name": "a" * 51}]}, id="a namespace too long for a login"),
        pytest.param({"dashboard": {"url": "dapo.example.org"}}, id="an address without its scheme"),
        pytest.param({"dashboard": {"url": "https://dapo.example.org/"}}, id="an address with a slash at its end"),
        pytest.param({"dashboard": {"refreshSeconds": 0}}, id="refresh without a pause"),
        pytest.param({"dashboard": {"access": {"group": {}}}}, id="unknown key of access"),
        pytest.param({"postgres": {"userId": 0}}, id="Postgres as root"),
        pytest.param({"postgres": {"storage": {"size": "20 GB"}}}, id="a size with a space"),
        pytest.param({"postgres": {"sharedBuffers": "256Mi"}}, id="Postgres' sizes have units of their own"),
        pytest.param({"stores": {"bucket": "DAPO"}}, id="a bucket in capitals"),
        pytest.param({"monitoring": {"serviceMonitor": {"interval": "half a minute"}}}, id="interval"),
        pytest.param({"tests": {"timeoutSeconds": 1}}, id="no time for the test"),
        pytest.param({"podSecurity": {"user": "root"}}, id="user of pods"),
        pytest.param({"jobs": {"worker": {}}}, id="unknown role"),
        pytest.param({"alerts": {"receivers": [{"name": "a"}]}}, id="a receiver of no kind"),
        pytest.param(
            {"alerts": {"receivers": [{"name": "a", "slack": {"url": "file:///x"}}]}}, id="no URL of a receiver"
        ),
        pytest.param({"jobNamespaces": [{"name": "a", "podSecurity": "none"}]}, id="no pod security level"),
    ],
)
def test_the_schema_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"operator": {"replica": 2}}, "additional properties 'replica' not allowed", id="by the schema"),
        pytest.param({"postgres": {"embedded": False}}, "postgres.existingSecret", id="no database"),
        pytest.param({"minio": {"embedded": False}}, "minio.existingSecret", id="no object store"),
        pytest.param({}, "add a namespace to jobNamespaces", id="watches nothing"),
        pytest.param({"dashboard": {"ingress": {"enabled": True}}}, "dashboard.ingress.host", id="no host"),
        pytest.param({"dashboard": {"oidc": {"enabled": True}}}, "dashboard.oidc.metadataUrl", id="no provider"),
        pytest.param(
            {"alerts": {"receivers": [{"name": "a", "slack": {"urlFile": "url"}}]}},
            "alerts.receivers: a names a file: set its secretName",
            id="a file of no Secret",
        ),
        pytest.param(
            {"alerts": {"receivers": [{"name": "a", "webhook": {"url": "https://a"}}] * 2}},
            "several named a",
            id="receivers of one name",
        ),
        pytest.param({"demo": {"namespace": "nowhere"}}, "demo.namespace", id="a demo without credentials"),
    ],
)
def test_helm_says_what_is_missing(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)
