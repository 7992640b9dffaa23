"""What a team puts into its job files and data: pod templates that ask for the node, and files that no reader takes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_bench import SITE, raw_job

from dapo_core.errors import DataError
from dapo_operator.jobs.builders.pod_privileges import privileges
from dapo_operator.jobs.dapojob import job_of
from dapo_operator.jobs.job_objects import Site
from dapo_trainer.data.prompt_files import MAX_NESTING, PromptFile, check

RESTRICTED = Site(image="trainer", restricts_templates=True)


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "dapo", **fields}]}


ASKING: dict[str, dict[str, Any]] = {
    "a service account": {"serviceAccountName": "deployer"},
    "its old name": {"serviceAccount": "deployer"},
    "a token": {"automountServiceAccountToken": True},
    "a token, by null": {"automountServiceAccountToken": None},
    "a token, as a volume": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {}}]}}]},
    "a folder of the node": {"volumes": [{"name": "n", "hostPath": {"path": "/"}}]},
    "the node's network": {"hostNetwork": True},
    "the node's processes": {"hostPID": True},
    "the node's memory": {"hostIPC": True},
    "a port of the node": container(ports=[{"containerPort": 1, "hostPort": 1}]),
    "privileged": container(securityContext={"privileged": True}),
    "privileged in an init container": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
    "privileged beside it": {"containers": [{"name": "other", "securityContext": {"privileged": True}}]},
    "more privileges": container(securityContext={"allowPrivilegeEscalation": None}),
    "capabilities": container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "no security context": container(securityContext=None),
    "no security context of the pod": {"securityContext": None},
    "root": {"securityContext": {"runAsUser": 0}},
    "perhaps root": {"securityContext": {"runAsNonRoot": False}},
    "no seccomp": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
}
ORDINARY: dict[str, dict[str, Any]] = {
    "nothing": {},
    "placement": {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
    "its own volumes": {"volumes": [{"name": "c", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}]},
    "another user": {"securityContext": {"runAsUser": 2000, "fsGroup": 2000}},
    "a sidecar": {"containers": [{"name": "proxy", "image": "p", "securityContext": {"privileged": False}}]},
}


def problems(site: Site, **topology: Any) -> list[str]:
    return [problem.field for problem in job_of(raw_job(topology=topology), site).problems]


@pytest.mark.parametrize("role", ["", "trainer"])
@pytest.mark.parametrize("spec", ASKING.values(), ids=ASKING)
def test_a21_where_templates_are_restricted_none_asks_for_the_node(spec: dict[str, Any], role: str) -> None:
    template = {"podTemplate": {"spec": spec}}
    topology = {role: template} if role else template
    [field] = problems(RESTRICTED, **topology)
    assert field.startswith(f"spec.topology.{role}.podTemplate.spec" if role else "spec.topology.podTemplate.spec")
    assert all("null" not in field for field in problems(SITE, **topology))


@pytest.mark.parametrize("spec", ORDINARY.values(), ids=ORDINARY)
def test_a21_ordinary_templates_are_not_restricted(spec: dict[str, Any]) -> None:
    assert problems(RESTRICTED, podTemplate={"spec": spec}) == []


def test_a21_fields_that_mount_the_node_are_restricted_too() -> None:
    topology = {"modelCache": {"hostPath": "/models"}, "trainer": {"scratch": {"hostPath": "/scratch", "size": "1Gi"}}}
    fields = ["spec.topology.modelCache.hostPath", "spec.topology.trainer.scratch.hostPath"]
    assert problems(RESTRICTED, **topology) == fields and problems(SITE, **topology) == []


NAMES = ["spec", "securityContext", "containers", "volumes", "name", "projected", "ports", "hostPort"]
PLAIN = st.none() | st.booleans() | st.text() | st.floats()


@given(st.recursive(PLAIN, lambda x: st.lists(x) | st.dictionaries(st.sampled_from(NAMES), x)))
def test_a21_any_template_is_examined(template: Any) -> None:
    for given_ in (template, {"spec": template}):
        if isinstance(given_, dict):
            assert all(isinstance(field, str) for field in privileges(given_))


DATA = {
    "Latin-1": (b'{"prompt": "caf\xe9", "reward_model": {"ground_truth": "1"}}\n', "utf-8"),
    "brackets": (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 1 is nested too deeply"),
    "brackets later": (
        b'{"prompt": "a", "reward_model": {"ground_truth": "1"}}\n' * 3 + b'{"a":' * 100_000 + b"}" * 100_000,
        "line 4 is nested too deeply",
    ),
    "brackets that do not close": (b"[" * 100_000, "cannot be read"),
    "surrogates": (b'{"prompt": "\\ud800", "reward_model": {"ground_truth": "1"}}\n', "cannot be read"),
}


@pytest.mark.parametrize(("content", "words"), DATA.values(), ids=DATA)
def test_d_a_file_that_no_reader_takes_is_bad_data(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        check(PromptFile("spec.data.train[0]", "train", path), "math")


def test_d_brackets_in_a_text_are_data(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    text = "[" * (MAX_NESTING + 1)
    path.write_text(f'{{"prompt": "{text}", "reward_model": {{"ground_truth": "1"}}}}\n')
    [row] = check(PromptFile("spec.data.train[0]", "train", path), "math")
    assert row["prompt"] == [{"role": "user", "content": text}]
