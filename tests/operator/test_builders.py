"""The objects of a job: what every pod has, what a template may change, and what it may not."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from builders import job as job_with
from planner_bench import SITE

from dapo_core.naming import ROLES, Role
from dapo_operator.jobs.builders.pod_template import merged
from dapo_operator.jobs.builders.pods import pod, template_problems
from dapo_operator.jobs.builders.support import config_map, disruption_budget, network_policy
from dapo_operator.jobs.job_objects import Site
from dapo_operator.settings import OperatorSettings

SEPARATED = {"mode": "Separated", "rollout": {"replicas": 2}}


def built(role: Role = "trainer", site: Site = SITE, **groups: Any) -> dict[str, Any]:
    return pod(job_with(**groups), "uid", "run", role, 3, 1, site)


def container(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in made["spec"]["containers"] if each["name"] == "dapo")
    return found


def environment(made: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container(made)["env"]}


@pytest.mark.parametrize("role", ROLES)
def test_every_pod_is_restricted(role: Role) -> None:
    made = built(role, topology=SEPARATED)
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    assert made["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container(made)["securityContext"]
    assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
    assert made["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("role", ROLES)
def test_what_a_pod_program_finds(role: Role) -> None:
    made = built(role, topology=SEPARATED)
    variables = environment(made)
    assert variables["DAPO_ROLE"] == role and variables["DAPO_ATTEMPT"] == "3" and variables["DAPO_INDEX"] == "1"
    assert variables["DAPO_HEAD_ADDRESS"] == "first-head-3-0.first.default.svc:6379"
    assert container(made)["command"] == ["python", "-m", "dapo_trainer.pod", role]
    assert {each["mountPath"] for each in container(made)["volumeMounts"]} == {
        "/etc/dapo",
        "/var/lib/dapo",
        "/tmp",
        "/dev/shm",
    }


GIB_500 = {"size": "500Gi"}


@pytest.mark.parametrize(
    ("scratch", "volume", "request_", "mount"),
    [
        pytest.param(None, {"emptyDir": {}}, None, {}, id="the node's disk, unbounded"),
        pytest.param(GIB_500, {"emptyDir": {"sizeLimit": "500Gi"}}, "500Gi", {}, id="the node's disk"),
        pytest.param(
            GIB_500 | {"medium": "Memory"},
            {"emptyDir": {"sizeLimit": "500Gi", "medium": "Memory"}},
            None,
            {},
            id="memory",
        ),
        pytest.param(
            GIB_500 | {"hostPath": "/mnt/nvme"},
            {"hostPath": {"path": "/mnt/nvme", "type": "Directory"}},
            None,
            {"subPathExpr": "$(DAPO_POD_NAME)"},
            id="a folder of the node, of which each pod has its part",
        ),
        pytest.param(
            GIB_500 | {"storageClassName": "fast"},
            {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "storageClassName": "fast",
                            "resources": {"requests": {"storage": "500Gi"}},
                        }
                    }
                }
            },
            None,
            {},
            id="a volume of its own",
        ),
    ],
)
def test_where_a_pod_works(
    scratch: dict[str, str] | None, volume: dict[str, Any], request_: str | None, mount: dict[str, str]
) -> None:
    made = built(topology={"trainer": {"scratch": scratch}} if scratch else {})
    assert {"name": "dapo-work", **volume} in made["spec"]["volumes"]
    assert {"name": "dapo-work", "mountPath": "/var/lib/dapo", **mount} in container(made)["volumeMounts"]
    assert container(made)["resources"]["requests"].get("ephemeral-storage") == request_


@pytest.mark.parametrize(
    ("cache", "role", "expected"),
    [
        ({"hostPath": "/mnt/models"}, "trainer", {"hostPath": {"path": "/mnt/models", "type": "Directory"}}),
        ({"claim": "models"}, "rollout", {"persistentVolumeClaim": {"claimName": "models"}}),
        ({"claim": "models"}, "head", {"emptyDir": {}}),
    ],
    ids=["of each node", "of all nodes", "a head keeps its files to itself"],
)
def test_where_models_are_kept(cache: dict[str, str], role: Role, expected: dict[str, Any]) -> None:
    made = built(role, topology=SEPARATED | {"modelCache": cache | {"maxSize": "1Ti"}})
    assert {"name": "dapo-models", **expected} in made["spec"]["volumes"]
    assert {"name": "dapo-models", "mountPath": "/var/cache/dapo"} in container(made)["volumeMounts"]
    variables = environment(made)
    assert variables["DAPO_MODEL_CACHE"] == "/var/cache/dapo" and variables["DAPO_MODEL_CACHE_BYTES"] == str(2**40)


@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_the_model_in_every_pod(role: Role) -> None:
    reference = f"registry.example.org/qwen@sha256:{'0' * 64}"
    made = built(role, topology=SEPARATED | {"modelCache": {"image": reference}})
    assert {"name": "dapo-models", "image": {"reference": reference}} in made["spec"]["volumes"]
    mount = {"name": "dapo-models", "mountPath": "/var/cache/dapo", "readOnly": True}
    assert mount in container(made)["volumeMounts"]
    variables = environment(made)
    assert variables["DAPO_MODEL_FOLDER"] == "/var/cache/dapo" and "DAPO_MODEL_CACHE" not in variables


@pytest.mark.parametrize("role", ROLES)
def test_shared_memory_readiness_and_the_time_to_save(role: Role) -> None:
    sizes = {each: {"resources": {"shm": f"{number}Gi"}} for number, each in enumerate(ROLES, 1)}
    made = built(role, topology=merged(SEPARATED, sizes), runPolicy={"gracePeriodSeconds": 300})
    volumes = {each["name"]: each for each in made["spec"]["volumes"]}
    size = f"{ROLES.index(role) + 1}Gi"
    assert volumes["dapo-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
    assert container(made)["readinessProbe"]["exec"]["command"] == ["test", "-f", "/var/lib/dapo/ready"]
    assert made["spec"]["terminationGracePeriodSeconds"] == 330
    assert made["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("role", "restart", "gang", "seconds"),
    [
        ("trainer", "InPlace", {}, 4),
        ("trainer", "Recreate", {}, 15),
        ("head", "InPlace", {}, 15),
        ("trainer", "InPlace", {"scheduler": "volcano", "queue": "q"}, 15),
    ],
    ids=["a trainer that may stay", "one that may not", "a head", "with a gang scheduler"],
)
def test_how_soon_a_pod_is_seen_to_be_no_longer_ready(
    role: Role, restart: str, gang: dict[str, str], seconds: int
) -> None:
    probe = container(built(role, runPolicy={"restart": restart, "gang": gang}))["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


def test_gpus_are_asked_for_by_their_name() -> None:
    topology = {"gpuResource": "amd.com/gpu", "trainer": {"gpusPerPod": 8}}
    assert container(built(topology=topology))["resources"]["limits"]["amd.com/gpu"] == "8"
    assert "amd.com/gpu" not in container(built("head", topology=topology))["resources"]["limits"]


def test_claims_are_mounted_in_every_pod() -> None:
    made = built("head", model={"source": "pvc://models/qwen"}, checkpoints={"uri": "pvc://out/run"})
    mounts = {each["mountPath"] for each in container(made)["volumeMounts"]}
    assert {"/pvc/models", "/pvc/out"} <= mounts


def test_d14_a_template_asks_for_what_a_fabric_needs() -> None:
    """As far as the namespace admits it: locked memory for RDMA, a plug-in of the node, the node's network."""
    own: dict[str, Any] = {"name": "dapo", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    own |= {"volumeMounts": [{"name": "plug-in", "mountPath": "/usr/local/nccl"}]}
    plug_in = {"name": "plug-in", "hostPath": {"path": "/opt/nccl"}}
    template = {"spec": {"hostNetwork": True, "containers": [own], "volumes": [plug_in]}}
    made = built(topology={"trainer": {"podTemplate": template}})
    assert made["spec"]["hostNetwork"] and plug_in in made["spec"]["volumes"]
    capabilities = container(made)["securityContext"]["capabilities"]
    assert capabilities["add"] == ["IPC_LOCK"] and capabilities["drop"] == ["ALL"]


def test_d15_a_template_adds_resource_claims() -> None:
    claim = {"name": "domain", "resourceClaimTemplateName": "imex"}
    own = {"name": "dapo", "resources": {"claims": [{"name": "domain"}]}}
    template = {"spec": {"resourceClaims": [claim], "containers": [own]}}
    made = built(topology={"trainer": {"gpusPerPod": 4, "podTemplate": template}})
    assert made["spec"]["resourceClaims"] == [claim]
    resources = container(made)["resources"]
    assert resources["claims"] == [{"name": "domain"}] and resources["limits"]["nvidia.com/gpu"] == "4"


def test_a_template_adds_and_changes() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {"name": "dapo", "image": "own:1", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                {"name": "side", "image": "side:1"},
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
    made = built(topology={"trainer": {"podTemplate": template}})
    assert container(made)["image"] == "own:1"
    assert environment(made)["NCCL_DEBUG"] == "INFO" and environment(made)["DAPO_ROLE"] == "trainer"
    assert made["metadata"]["labels"]["team"] == "a" and made["metadata"]["labels"]["dapo.io/job"] == "first"
    assert {each["name"] for each in made["spec"]["containers"]} == {"dapo", "side"}
    assert "scratch" in {each["name"] for each in made["spec"]["volumes"]}
    assert {"key": "spot", "operator": "Exists"} in made["spec"]["tolerations"]
    assert any(each["key"] == "node.kubernetes.io/unreachable" for each in made["spec"]["tolerations"])


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"activeDeadlineSeconds": 5}}, "spec.activeDeadlineSeconds"),
        ({"spec": {"priorityClassName": "high"}}, "spec.priorityClassName"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "dapo", "command": ["sh"]}]}}, "spec.containers[dapo].command"),
        (
            {"spec": {"containers": [{"name": "dapo", "env": [{"name": "DAPO_ROLE", "value": "x"}]}]}},
            "spec.containers[dapo].env[DAPO_ROLE]",
        ),
        (
            {"spec": {"containers": [{"name": "dapo", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}},
            "spec.containers[dapo].resources.limits[nvidia.com/gpu]",
        ),
        (
            {"spec": {"containers": [{"name": "dapo", "volumeMounts": [{"name": "a", "mountPath": "/etc/dapo/"}]}]}},
            "spec.containers[dapo].volumeMounts[/etc/dapo/]",
        ),
        ({"spec": {"volumes": [{"name": "dapo-shm"}]}}, "spec.volumes[dapo-shm]"),
        ({"metadata": {"labels": {"dapo.io/job": "x"}}}, "metadata.labels[dapo.io/job]"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels[a]"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"specs": {}}, "specs"),
        ({"spec": []}, "spec"),
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": None}, "spec"),
        ({"metadata": {"labels": None}}, "metadata.labels"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"containers": [{"name": "dapo", "env": None}]}}, "spec.containers[dapo].env"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_template_that_fights_is_told_the_field(template: dict[str, Any], field: str) -> None:
    problems = template_problems(job_with(topology={"trainer": {"podTemplate": template}}), SITE)
    assert f"spec.topology.trainer.podTemplate.{field}" in [problem.field for problem in problems]
    assert all(problem.message.endswith(".") for problem in problems)


def test_an_image_has_to_come_from_somewhere() -> None:
    problems = template_problems(job_with(), Site())
    assert [problem.field for problem in problems] == [
        "spec.topology.head.podTemplate.spec.containers[dapo].image",
        "spec.topology.trainer.podTemplate.spec.containers[dapo].image",
    ]


def test_templates_are_merged_from_the_installation_to_the_role() -> None:
    def template(**variables: str) -> dict[str, Any]:
        env = [{"name": name, "value": value} for name, value in variables.items()]
        return {"spec": {"containers": [{"name": "dapo", "env": env}]}}

    everyone, trainers = template(A="site", B="site", C="site", D="site"), template(B="role", C="role", D="role")
    site = replace(SITE, pod_templates={"all": everyone, "trainer": trainers, "rollout": template(A="no")})
    topology = {"podTemplate": template(C="job", D="job"), "trainer": {"podTemplate": template(D="own")}}
    variables = environment(built(topology=topology, site=site))
    assert {name: variables[name] for name in "ABCD"} == {"A": "site", "B": "role", "C": "job", "D": "own"}
    assert environment(built("head", topology=topology, site=site))["D"] == "job"


def test_a_template_of_all_roles_is_checked_and_may_name_the_image() -> None:
    named = {"spec": {"containers": [{"name": "dapo", "image": "own:1"}]}}
    assert template_problems(job_with(topology={"podTemplate": named}), Site()) == []
    assert template_problems(job_with(), Site(pod_templates={"all": named})) == []
    bad = {"spec": {"hostname": "x", "containers": [{"name": "dapo", "resources": {"limits": {"memory": "1Gi"}}}]}}
    problems = template_problems(job_with(topology={"podTemplate": bad}), SITE)
    assert [problem.field for problem in problems] == [
        "spec.topology.podTemplate.spec.hostname",
        "spec.topology.podTemplate.spec.containers[dapo].resources.limits[memory]",
    ]


def test_no_pod_names_a_user_where_the_cluster_assigns_them() -> None:
    security = built(site=replace(SITE, fixed_user=False))["spec"]["securityContext"]
    assert security["runAsNonRoot"] and not security.keys() & {"runAsUser", "runAsGroup", "fsGroup"}


@pytest.mark.parametrize(
    ("templates", "words"),
    [
        ({"worker": {}}, "DAPO_POD_TEMPLATES has worker; its keys must be one of all, head, trainer, rollout."),
        ({"all": {"spec": {"hostname": "x"}}}, "DAPO_POD_TEMPLATES.all.spec.hostname is managed by the operator"),
        ({"head": []}, "DAPO_POD_TEMPLATES.head must be a mapping"),
        ([], "DAPO_POD_TEMPLATES must be a mapping"),
    ],
    ids=["role", "managed", "no template", "no mapping"],
)
def test_templates_of_the_installation_are_checked_when_the_operator_starts(templates: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        OperatorSettings.of({"DAPO_POD_TEMPLATES": json.dumps(templates)})


@pytest.mark.parametrize(
    ("base", "over", "whole"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "2"}]},
            {"env": [{"name": "A", "value": "2"}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ),
    ],
    ids=["keys", "null removes", "lists are replaced", "by name", "tolerations are added"],
)
def test_merge(base: Any, over: Any, whole: Any) -> None:
    assert merged(base, over) == whole


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_gang_is_packed_and_never_spread(role: Role) -> None:
    """On one node, else in one NVLink domain, else in one zone, of whatever role."""
    made = built(role, topology={"mode": "Separated", "trainer": {"replicas": 2}, "rollout": {"replicas": 2}})
    peers = {"matchLabels": {"dapo.io/job": "first", "dapo.io/attempt": "3"}}
    terms = made["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(term["weight"], term["podAffinityTerm"]["topologyKey"]) for term in terms] == [
        (100, "kubernetes.io/hostname"),
        (50, "nvidia.com/gpu.clique"),
        (25, "topology.kubernetes.io/zone"),
    ]
    assert all(term["podAffinityTerm"]["labelSelector"] == peers for term in terms)
    (spread,) = made["spec"]["topologySpreadConstraints"]
    labels = made["metadata"]["labels"]
    counted = spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert not counted, "it counts no pod, and replaces the scheduler's default"


def test_labels_of_racks_come_from_the_installation() -> None:
    assert Site(topology_key="example.org/rack, topology.kubernetes.io/zone,").topology_keys == [
        "example.org/rack",
        "topology.kubernetes.io/zone",
    ]


@pytest.mark.parametrize("role", ["head", "trainer"])
def test_a_pod_without_peers_is_put_anywhere(role: Role) -> None:
    assert not {"affinity", "topologySpreadConstraints"} & built(role)["spec"].keys()


def test_support() -> None:
    job = job_with(topology=SEPARATED)
    assert disruption_budget(job, "uid")["spec"]["minAvailable"] == 4
    assert '"kind": "DAPOJob"' in config_map(job, "uid", "0123")["data"]["job.json"]
    policy = network_policy("first", "team", "uid")["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
