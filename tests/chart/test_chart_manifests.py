"""What Helm makes of the chart: rules that hold for every installation, and the differences between them."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from chart_rendering import (
    CHART,
    INSTALLATIONS,
    NAMESPACE,
    TEAMS,
    Object,
    environment,
    helm,
    named,
    pod_templates,
    rendered,
    with_values,
)

from dapo_core.notify.receivers import read_receivers
from dapo_core.run.reasons import Reason
from dapo_core.run.status import ConditionType
from dapo_operator.job_state import FAILED_RECENTLY, WAITING
from dapo_operator.reconciler import FROZEN
from dapo_operator.settings import OperatorSettings
from dapo_operator.telemetry import instrumentation

EVERY = pytest.mark.parametrize("name", INSTALLATIONS)


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def kinds(name: str) -> Counter[str]:
    return Counter(each["kind"] for each in rendered(name))


def test_lint() -> None:
    answer = helm("lint", "--strict", "--kube-version=1.34.0", str(CHART))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@EVERY
def test_pods_are_restricted(name: str) -> None:
    for pod in pod_templates(rendered(name)).values():
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] and security.get("runAsUser", 1) > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


@EVERY
def test_only_who_asks_the_api_server_has_a_token(name: str) -> None:
    with_token = {key for key, pod in pod_templates(rendered(name)).items() if "serviceAccountName" in pod["spec"]}
    assert with_token <= {"Deployment/dapo-operator", "Job/dapo-uninstall", "Pod/dapo-helm-test"}
    for key, pod in pod_templates(rendered(name)).items():
        assert pod["spec"].get("automountServiceAccountToken", True) is (key in with_token)


@EVERY
def test_what_is_referred_to_is_there(name: str) -> None:
    objects, outside = rendered(name), {"database", "objects", "login", "certificate", "registry"}
    if name == "external stores":
        outside.add("dapo-stores")
    there = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    for pod in pod_templates(objects).values():
        for container in containers(pod):
            for variable in container.get("env", []):
                if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                    if reference["name"] in outside:
                        continue
                    assert reference["key"] in there["Secret", reference["name"]]["data"], reference
            for source in container.get("envFrom", []):
                assert source["secretRef"]["name"] in outside or ("Secret", source["secretRef"]["name"]) in there
        for volume in pod["spec"].get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in there


@EVERY
def test_selectors_find_the_pods_of_one_component(name: str) -> None:
    objects = rendered(name)
    pods = {key: pod["metadata"]["labels"] for key, pod in pod_templates(objects).items()}
    for each in objects:
        selector = each.get("spec", {}).get("selector")
        if each["kind"] == "Service":
            wanted = selector
        elif each["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            wanted = selector["matchLabels"]
        else:
            continue
        found = [key for key, labels in pods.items() if wanted.items() <= labels.items()]
        assert len(found) == 1, (each["kind"], each["metadata"]["name"], found)


@EVERY
def test_every_name_is_one_objects(name: str) -> None:
    keys = Counter(
        (each["kind"], each["metadata"].get("namespace", NAMESPACE), each["metadata"]["name"])
        for each in rendered(name)
    )
    assert [key for key, count in keys.items() if count > 1] == []


def test_the_definition_is_the_generated_one() -> None:
    mine = named(rendered("cluster-wide"), "CustomResourceDefinition", "dapojobs.dapo.io")
    assert mine["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert mine["spec"] == yaml.safe_load((CHART / "files" / "dapojobs.yaml").read_text())["spec"]
    assert "CustomResourceDefinition" not in kinds("least")


def test_external_stores_bring_no_server_and_no_password() -> None:
    found = kinds("external stores")
    assert "StatefulSet" not in found and "Secret" not in found
    assert not [each for each in rendered("external stores") if each["metadata"]["name"] == "dapo-accounts"]
    migrate = named(rendered("external stores"), "Job", "dapo-migrate")
    [container] = migrate["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {"name": "DAPO_METADATA_URL", "valueFrom": {"secretKeyRef": {"name": "database", "key": "owner-url"}}}
    ]


def test_each_team_has_credentials_of_its_own() -> None:
    secrets = [named(rendered("teams"), "Secret", "dapo-stores", team)["stringData"] for team in ("team-a", "team-b")]
    for team, secret in zip(("a", "b"), secrets, strict=True):
        assert re.fullmatch(
            rf"postgresql://dapo_writer_team_{team}:\w{{32}}@dapo-postgres\.dapo-system\.svc:5432/dapo",
            secret["DAPO_METADATA_URL"],
        )
        assert secret["DAPO_STORE_URL"].startswith(f"s3://dapo/team-{team}?endpoint=http://dapo-minio.dapo-system.svc")
        assert secret["DAPO_S3_ACCESS_KEY"] == f"dapo-team-{team}"
    assert not set(secrets[0].values()) & (set(secrets[1].values()) - {"http://dapo-minio.dapo-system.svc:9000"})


def test_the_dashboard_looks_for_samples_where_each_team_puts_them() -> None:
    container = pod_templates(rendered("teams"))["Deployment/dapo-dashboard"]["spec"]["containers"][0]
    place = next(each["value"] for each in container["env"] if each["name"] == "DAPO_STORE_URL")
    theirs = named(rendered("teams"), "Secret", "dapo-stores", "team-a")["stringData"]["DAPO_STORE_URL"]
    assert place.replace("{namespace}", "team-a") == theirs


@pytest.mark.parametrize("name", ["teams", "watching nodes"])
def test_d12_by_default_the_operator_has_no_rights_elsewhere(name: str) -> None:
    objects = rendered(name)
    bound = [each["roleRef"]["name"] for each in objects if each["kind"] == "ClusterRoleBinding"]
    assert bound == ([f"{NAMESPACE}-dapo-operator-nodes"] if name == "watching nodes" else [])
    if bound:
        [rule] = named(objects, "ClusterRole", bound[0])["rules"]
        assert rule == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    roles = {(each["metadata"].get("namespace")) for each in objects if each["kind"] == "Role"}
    assert roles == {None, "team-a", "team-b"}  # its own namespace holds the Lease alone
    operator = pod_templates(objects)["Deployment/dapo-operator"]
    [container] = operator["spec"]["containers"]
    assert {"name": "DAPO_NAMESPACES", "value": "team-a,team-b"} in container["env"]
    assert ({"name": "DAPO_WATCH_NODES", "value": "false"} in container["env"]) is not bool(bound)


def test_images_come_from_one_registry() -> None:
    pods = pod_templates(rendered("everything")).values()
    images = {container["image"] for pod in pods for container in containers(pod)}
    names = ("operator", "dashboard", "trainer", "postgres", "minio")
    assert images == {f"registry.example.org/dapo/{name}:1.2.3" for name in names}
    for pod in pods:
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_volumes_and_passwords_stay_unless_told_otherwise() -> None:
    kept = {each["metadata"]["name"]: each for each in rendered("teams") if each["kind"] in ("StatefulSet", "Secret")}
    assert kept["dapo-postgres"]["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert kept["dapo-credentials"]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    gone = {
        each["metadata"]["name"]: each for each in rendered("everything") if each["kind"] in ("StatefulSet", "Secret")
    }
    assert gone["dapo-minio"]["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert "helm.sh/resource-policy" not in gone["dapo-credentials"]["metadata"]["annotations"]


def test_the_receivers_of_alerts_find_their_secrets(tmp_path: Path) -> None:
    objects = rendered("everything")
    pod = pod_templates(objects)["Deployment/dapo-alerts"]["spec"]
    (path := tmp_path / "receivers.yaml").write_text(
        named(objects, "ConfigMap", "dapo-alerts")["data"]["receivers.yaml"]
    )
    chat, mail, hook = read_receivers(path)
    assert chat.slack is not None and mail.email is not None and hook.webhook is not None
    files = {
        (source["secret"]["name"], item["key"], tmp_path / item["path"])
        for source in pod["volumes"][0]["projected"]["sources"]
        if "secret" in source
        for item in source["secret"]["items"]
    }
    assert files == {("chat", "url", chat.folder / "url"), ("smtp", "password", mail.folder / "password")}
    assert pod["containers"][0]["args"][-1] == "/etc/dapo/alerts/receivers.yaml"
    assert "Deployment/dapo-alerts" not in pod_templates(rendered("teams"))


def test_the_login_reaches_streamlit() -> None:
    pod = pod_templates(rendered("everything"))["Deployment/dapo-dashboard"]
    [login] = pod["spec"]["initContainers"]
    assert 'redirect_uri = "https://dapo.example.org/oauth2callback"' in login["args"][0]
    [container] = pod["spec"]["containers"]
    assert {"name": "STREAMLIT_SECRETS_FILES", "value": "/etc/login/secrets.toml"} in container["env"]
    access = named(rendered("everything"), "ConfigMap", "dapo-dashboard")["data"]["access.yaml"]
    assert yaml.safe_load(access) == {"groups": {"math": ["team-a"]}, "everyone": ["team-b"]}


def test_alerts_name_metrics_that_the_operator_has() -> None:
    rule = named(rendered("everything"), "PrometheusRule", "dapo-operator")
    expressions = " ".join(each["expr"] for group in rule["spec"]["groups"] for each in group["rules"])
    source = Path(instrumentation.__file__).read_text()
    for metric in set(re.findall(r"dapo_operator_(\w+?)(?:_bucket|_total)?\{", expressions)):
        assert f'"{metric}"' in source or f"_{metric}" in source, metric
    assert "{{" not in expressions
    counted = {*get_args(ConditionType), FROZEN, WAITING, FAILED_RECENTLY}
    assert counted >= set(re.findall(r'condition="(\w+)"', expressions))
    reasons = "".join(re.findall(r'reason!~"(.*?)"', expressions)).split("|")
    assert all(any(re.fullmatch(each, reason) for reason in Reason) for each in reasons)


SEED = "a seed of at least thirty-two characters"


def _passwords(seed: str) -> Object:
    found = with_values({"jobNamespaces": [{"name": "team-a"}], "stores": {"passwordSeed": seed}})
    data: Object = named(found, "Secret", "dapo-credentials")["data"]
    return data


def test_b19_renderings_with_a_seed_have_the_same_passwords() -> None:
    first, second = _passwords(SEED), _passwords(SEED)
    assert first == second and len(set(first.values())) == len(first), "each has its own"
    assert first != _passwords(SEED + "!")


def test_b19_argo_brings_the_stores_first_then_the_tables_then_the_rest() -> None:
    def wave(raw: Object) -> int:
        return int(raw["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", "0"))

    found = rendered("teams")
    waves = {(raw["kind"], raw["metadata"]["name"]): wave(raw) for raw in found}
    before = [("Secret", "dapo-credentials"), ("Namespace", "team-a"), ("StatefulSet", "dapo-postgres")]
    assert {waves[key] for key in before} == {-2}
    after = [("Job", "dapo-migrate"), ("Deployment", "dapo-operator"), ("Job", "dapo-accounts")]
    assert [waves[key] for key in after] == [-1, 0, 1]
    for raw in found:
        annotations = raw["metadata"].get("annotations", {})
        # Argo CD knows nothing like a pre-delete hook.
        if annotations.get("helm.sh/hook", "test") not in ("test", "pre-delete"):
            assert annotations["argocd.argoproj.io/hook"] == "Sync", raw["metadata"]["name"]


RETENTIONS = [
    pytest.param({}, None, id="no limit, no CronJob"),
    pytest.param({"removeAfterDays": 365}, ["--remove-after", "365"], id="a dry run"),
    pytest.param(
        {"thinAfterDays": 30, "maxPoints": 500_000_000, "apply": True},
        ["--max-points", "500000000", "--thin-after", "30", "--yes"],
        id="applied",
    ),
]


@pytest.mark.parametrize(("retention", "options"), RETENTIONS)
def test_the_database_is_pruned_by_the_clock_where_that_is_wanted(retention: Object, options: list[str] | None) -> None:
    """B17."""
    objects = with_values({"jobNamespaces": TEAMS, "stores": {"retention": retention}})
    if options is None:
        assert ("CronJob", "dapo-prune") not in {(each["kind"], each["metadata"]["name"]) for each in objects}
        return
    job = named(objects, "CronJob", "dapo-prune")
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["db", "prune", *options] and job["spec"]["concurrencyPolicy"] == "Forbid"


EXTERNAL = {
    "postgres": {"embedded": False, "existingSecret": "database"},
    "minio": {"embedded": False, "existingSecret": "objects"},
}
SWEEPS: list[Any] = [
    pytest.param({}, {}, [], id="a dry run"),
    pytest.param(
        {"samplesAfterDays": 30, "apply": True}, {}, ["--samples-after", "30", "--remove"], id="applied, samples, too"
    ),
    pytest.param({"schedule": ""}, {}, None, id="not wanted"),
    pytest.param({}, EXTERNAL, None, id="stores of others without a Secret"),
    pytest.param({"secretName": "stores"}, EXTERNAL, [], id="stores of others"),
]


@pytest.mark.parametrize(("sweep", "more", "options"), SWEEPS)
def test_b17_each_namespaces_objects_are_swept_by_the_clock(
    sweep: Object, more: Object, options: list[str] | None
) -> None:
    objects = with_values({"jobNamespaces": TEAMS, "stores": {"sweep": sweep}, **more})
    found = {each["metadata"]["namespace"]: each for each in objects if each["metadata"]["name"] == "dapo-sweep"}
    assert found.keys() == (set() if options is None else {team["name"] for team in TEAMS})
    for job in found.values():
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert container["args"] == ["checkpoints", "sweep", *(options or [])] and job["spec"]["suspend"] is False
        assert container["envFrom"] == [{"secretRef": {"name": sweep.get("secretName", "dapo-stores")}}]


def test_b16_points_are_converted_when_somebody_asks() -> None:
    job = named(with_values({"jobNamespaces": TEAMS}), "CronJob", "dapo-convert")
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["suspend"] is True and container["args"] == ["db", "convert"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "owner-url"


@pytest.mark.parametrize(
    ("user", "options", "expected"),
    [
        ("", (), "fixed"),
        ("", ("--api-versions=security.openshift.io/v1",), "assigned"),
        ("fixed", ("--api-versions=security.openshift.io/v1",), "fixed"),
        ("assigned", (), "assigned"),
    ],
    ids=["Kubernetes", "OpenShift", "OpenShift with fixed users", "assigned"],
)
def test_no_pod_names_a_user_where_the_cluster_assigns_them(user: str, options: tuple[str, ...], expected: str) -> None:
    values = {"jobNamespaces": [{"name": "team-a", "create": True}], "demo": {"namespace": "team-a"}}
    values["podSecurity"] = {"user": user}
    named_users = {
        key
        for pod in pod_templates(with_values(values, *options)).values()
        for key in pod["spec"]["securityContext"].keys() & {"runAsUser", "runAsGroup", "fsGroup"}
    }
    assert bool(named_users) is (expected == "fixed")
    assert environment(with_values(values, *options), "dapo-operator")["DAPO_POD_USER"] == expected


def test_what_the_pods_of_all_jobs_get_is_checked_and_merged_by_the_operator() -> None:
    """The chart's values reach the pods."""
    proxy = [{"name": "dapo", "env": [{"name": "HTTPS_PROXY", "value": 'http://"proxy":3128'}]}]
    jobs: dict[str, Any] = {
        "podTemplate": {"spec": {"containers": proxy, "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
        "rollout": {"podTemplate": {"spec": {"nodeSelector": {"gpu": "l40s"}}}},
    }
    objects = with_values({"jobNamespaces": [{"name": "team-a"}], "jobs": jobs})
    site = OperatorSettings.of(environment(objects, "dapo-operator")).site
    assert site.pod_templates == {"all": jobs["podTemplate"], "rollout": jobs["rollout"]["podTemplate"]}


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
def test_the_pod_security_level_of_a_namespace(level: str) -> None:
    entry = {"name": "team-a", "create": True} | ({} if level == "restricted" else {"podSecurity": level})
    namespace = named(with_values({"jobNamespaces": [entry]}), "Namespace", "team-a")
    labels = namespace["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{kind}"] for kind in ("enforce", "warn")} == {level}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "removed"])
def test_b26_jobs_are_released_before_the_operator_is_removed(keep: bool) -> None:
    values: Object = {"jobNamespaces": [{"name": "team-a"}, {"name": "team-b"}], "crds": {"keep": keep}}
    job = named(with_values(values), "Job", "dapo-uninstall")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "--namespaces=team-a,team-b" in container["command"]
    assert ("--delete-jobs" in container["command"]) is not keep
    everywhere = named(with_values({"operator": {"clusterWide": True}}), "Job", "dapo-uninstall")
    (container,) = everywhere["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "dapo_operator.uninstall"]
