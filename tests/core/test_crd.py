"""The CRD is what the API server takes: structural, bounded where rules look, and generous to valid jobs."""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import attacks
import chart_values
import jsonschema
import permissions
import pytest
import queue_situations
import runbooks
import s3_server_table
import yaml
from builders import MINIMAL, VALIDATION, dumped, job
from generated_files import FILES, stale, write
from generated_files import ROOT as REPOSITORY

from dapo_core.crd.definition import MAX_BYTES, crd, crd_yaml
from dapo_core.jobspec import load_job
from dapo_core.jobspec.presets import merged
from dapo_core.jobspec.rules import CEL_RULES
from dapo_core.naming import MAX_JOB_NAME

ROOT = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
# What apiextensions.k8s.io/v1 knows of a schema and this CRD uses.
KNOWN = {
    "type", "format", "description", "default", "nullable", "enum", "properties", "required", "items",
    "additionalProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
    "pattern", "minItems", "maxItems", "x-kubernetes-validations", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "anyOf",
}  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


NODES = dict(nodes(ROOT))


def json_schema(node: Any) -> Any:
    """The OpenAPI 3.0 schema as JSON schema, refusing what the API server would prune as unknown."""
    if isinstance(node, list):
        return [json_schema(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    result = {key: json_schema(value) for key, value in node.items() if not key.startswith("x-")}
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if result.get(exclusive) is True:
            result[exclusive] = result.pop(inclusive)
    if result.pop("nullable", False) is True:
        result["type"] = [result["type"], "null"]
    if "properties" in node and "x-kubernetes-preserve-unknown-fields" not in node:
        result["additionalProperties"] = False
    return result


def test_every_node_is_structural() -> None:
    for path, node in NODES.items():
        assert node.keys() <= KNOWN, path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), path


def test_every_field_has_a_text() -> None:
    outside = {"apiVersion", "kind", "metadata", "metadata.name"}
    silent = [path for path, node in NODES.items() if not path.endswith("[]") and not node.get("description")]
    assert set(silent) == outside


def test_size() -> None:
    assert len(crd_yaml()) < MAX_BYTES


def test_only_what_must_be_given_is_required() -> None:
    required = {f"{path}.{name}".lstrip(".") for path, node in NODES.items() for name in node.get("required", ())}
    assert {path for path in required if path.startswith("spec")} == {
        "spec",
        "spec.model",
        "spec.model.source",
        "spec.data",
        "spec.data.train",
        "spec.data.train[].source",
        "spec.data.validation[].name",
        "spec.data.validation[].source",
        "spec.reward.additional[].name",
        "spec.guards[].rule",
        "spec.topology.head.scratch.size",
        "spec.topology.trainer.scratch.size",
        "spec.topology.rollout.scratch.size",
        "spec.runPolicy.failureRules[].action",
    }


@pytest.mark.parametrize("path", [path for path, node in NODES.items() if node.get("x-kubernetes-validations")])
def test_rules_name_fields_that_exist(path: str) -> None:
    for rule in NODES[path]["x-kubernetes-validations"]:
        text = re.sub(r"r?'[^']*'", "", rule["rule"])
        for chain in re.findall(r"(?:self|oldSelf)((?:\.\w+)+(?!\w*\())", text):
            assert f"{path}{chain}".lstrip(".") in NODES, (path, chain)
        if "fieldPath" in rule:
            assert path + rule["fieldPath"] in NODES
        assert rule["message"] and "\n" not in rule["message"]


@pytest.mark.parametrize("path", [path for path, node in NODES.items() if node.get("type") in ("array", "string")])
def test_what_rules_may_look_at_is_bounded(path: str) -> None:
    """The API server estimates a rule's cost from the largest value there may be."""
    node = NODES[path]
    if path.startswith("spec"):
        assert "maxItems" in node or "maxLength" in node or "enum" in node, path


def test_rules_stand_where_the_table_says() -> None:
    for path in {rule.path for rule in CEL_RULES}:
        written = [entry["message"] for entry in NODES[path]["x-kubernetes-validations"]]
        assert written == [rule.message for rule in CEL_RULES if rule.path == path]


def test_columns_and_subresources_point_at_fields() -> None:
    version = crd()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    paths = [*scale.values(), *(column["jsonPath"] for column in version["additionalPrinterColumns"])]
    assert [path for path in paths if path.lstrip(".") not in NODES] == [".metadata.creationTimestamp"]
    names = [column["name"].upper() for column in version["additionalPrinterColumns"]]
    shown = "STATUS REASON PODS STEP REWARD ENTROPY LENGTH ETA RESTARTS ATTEMPT QUEUE GPUS CHECKPOINT,LAST STEP,AGE"
    assert names == [name for part in shown.split(",") for name in ([part] if part == "LAST STEP" else part.split())]


def test_replicas_are_there_to_scale() -> None:
    """Without a number at its path the scale subresource answers with an error."""
    assert NODES["spec.topology"]["default"] == NODES["spec.topology.rollout"]["default"] == {}
    assert NODES["spec.topology.rollout.replicas"]["default"] == 1
    assert [path for path, node in NODES.items() if "default" in node] == [
        "spec.topology",
        "spec.topology.rollout",
        "spec.topology.rollout.replicas",
    ]


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param({}, id="minimal"),
        pytest.param({"data": {"validation": VALIDATION}, "checkpoints": {"keepBest": 1}}, id="validation"),
        pytest.param({"algorithm": {"preset": "grpo"}}, id="grpo"),
        pytest.param(
            {"topology": {"trainer": {"resources": {"cpu": 4}, "podTemplate": {"a": [1]}}}}, id="free objects"
        ),
    ],
)
def test_valid_jobs_pass_the_schema(groups: dict[str, Any]) -> None:
    schema = json_schema(ROOT["properties"]["spec"])
    jsonschema.validate(merged(MINIMAL, {"spec": groups})["spec"], schema)
    jsonschema.validate(dumped(job(**groups))["spec"], schema)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param({"batch": {"prompts": "many"}}, id="wrong type"),
        pytest.param({"batch": {"temperature": 0}}, id="bound"),
        pytest.param({"topology": {"mode": "Mixed"}}, id="choice"),
        pytest.param({"optimzer": {}}, id="unknown field"),
        pytest.param({"data": {"train": []}}, id="empty list"),
    ],
)
def test_bad_jobs_fail_the_schema(groups: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(MINIMAL, {"spec": groups})["spec"], json_schema(ROOT["properties"]["spec"]))


def test_the_name_limit_is_the_models() -> None:
    (rule,) = ROOT["x-kubernetes-validations"]
    assert f"size(self.metadata.name) <= {MAX_JOB_NAME}" in rule["rule"]


def test_each_call_generates_a_new_crd() -> None:
    first = crd()
    first["spec"]["versions"].clear()
    assert deepcopy(crd()) == yaml.safe_load(crd_yaml())


def test_generated_files_are_fresh() -> None:
    assert stale() == []


def test_stale_files_are_found_and_written(tmp_path: Path) -> None:
    parts = {
        "charts/dapo/README.md": chart_values,
        "docs/install.md": permissions,
        "docs/operator.md": runbooks,
        "docs/queues.md": queue_situations,
        "docs/security.md": attacks,
        "docs/stores.md": s3_server_table,
    }
    for page, part in parts.items():
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"Before.\n{part.BEGIN}\nold\n{part.END}\nAfter.\n")
    assert write(tmp_path) == list(FILES)
    (tmp_path / "docs/reference.md").write_text("old")
    assert stale(tmp_path) == ["docs/reference.md"]
    text = (tmp_path / "docs/operator.md").read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old\n" not in text


def test_a_page_without_a_place_for_its_section_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no lines"):
        stale(tmp_path)


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name) for path in sorted((REPOSITORY / "examples").rglob("*.yaml"))]
)
def test_examples_are_valid(path: Path) -> None:
    load_job(path)
