"""Who reaches the dashboard, and what a values file must not give away, in the chart as Helm renders it."""

import asyncio
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from chart_rendering import (
    NAMESPACE,
    TEAMS,
    Object,
    environment,
    named,
    pod_templates,
    refusal,
    rendered,
    with_values,
)

from dapo_dashboard.frame_headers import FrameHeaders

LOGIN = {
    "url": "https://dapo.example.org",
    "oidc": {"enabled": True, "metadataUrl": "https://login.example.org/x", "secretName": "login"},
}


@pytest.mark.parametrize("name", ["cluster-wide", "teams", "external stores"])
def test_a06_no_pod_reaches_a_dashboard_without_login(name: str) -> None:
    policy = named(rendered(name), "NetworkPolicy", "dapo-dashboard")["spec"]
    assert policy["policyTypes"] == ["Ingress"] and policy["ingress"] == []


def test_a06_a_login_opens_the_dashboard() -> None:
    policy = named(rendered("everything"), "NetworkPolicy", "dapo-dashboard")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": 8501}]}]


def test_a06_a_dashboard_without_login_for_all_takes_no_acknowledgement() -> None:
    objects = with_values({"jobNamespaces": TEAMS, "dashboard": {"allowAnonymous": True}})
    assert named(objects, "NetworkPolicy", "dapo-dashboard")["spec"]["ingress"]
    assert "DAPO_ACKNOWLEDGE_URL" not in environment(objects, "dapo-dashboard")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"dashboard": LOGIN}, "dashboard.access", id="a login that sees all"),
        pytest.param(
            {"dashboard": {"ingress": {"enabled": True, "host": "a.example.org"}}},
            "dashboard.allowAnonymous",
            id="an ingress without login",
        ),
    ],
)
def test_a06_helm_refuses_to_show_all_runs_by_accident(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


@pytest.mark.parametrize("name", ["dashboard", "root", NAMESPACE])
def test_a21_no_job_namespace_collides_with_the_platforms_own_names(name: str) -> None:
    assert f"jobNamespaces has {name}" in refusal({"jobNamespaces": [{"name": name}]})


@pytest.mark.parametrize(
    ("name", "hosts"), [("cluster-wide", "localhost 127.0.0.1"), ("everything", "localhost 127.0.0.1 dapo.example.org")]
)
def test_a21_a_page_of_another_name_cannot_read_the_dashboard(name: str, hosts: str) -> None:
    allowed = environment(rendered(name), "dapo-dashboard")["STREAMLIT_SERVER_ALLOWED_HOSTS"].split()
    assert list(dict.fromkeys(allowed)) == hosts.split()


def test_a21_no_other_site_shows_the_pages_in_a_frame() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"ALLOWALL")]})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(FrameHeaders(app)({"type": "http"}, None, send))  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])
    assert headers[b"content-security-policy"] == b"frame-ancestors 'self'"
    assert headers[b"x-frame-options"] == b"SAMEORIGIN" and b"X-Frame-Options" not in headers


def test_a18_the_operator_reads_no_secret_and_is_no_owner_of_the_database() -> None:
    objects = rendered("cluster-wide")
    rules = named(objects, "ClusterRole", f"{NAMESPACE}-dapo-operator")["rules"]
    assert [rule["verbs"] for rule in rules if "secrets" in rule["resources"]] == [["create"]]
    [container] = pod_templates(objects)["Deployment/dapo-operator"]["spec"]["containers"]
    url = next(each for each in container["env"] if each["name"] == "DAPO_METADATA_URL")
    assert url["valueFrom"]["secretKeyRef"]["key"] == "operator-url"


def allowed(policy: Object, address: str) -> bool:
    """Whether an egress policy lets a pod connect to this address, which is no pod's, on port 80."""
    peers = [peer for rule in policy["spec"]["egress"] if "ports" not in rule for peer in rule["to"]]
    blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    there = ip_address(address)
    return any(
        there in ip_network(block["cidr"]) and not any(there in ip_network(but) for but in block.get("except", []))
        for block in blocks
    )


METADATA = ["169.254.169.254", "169.254.170.2", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "fe80::a9fe:a9fe"]


@pytest.mark.parametrize("address", METADATA)
def test_a21_no_pod_of_a_job_reaches_a_metadata_service(address: str) -> None:
    for team in TEAMS:
        policy = named(rendered("teams"), "NetworkPolicy", "dapo-job-egress", team["name"])
        assert policy["spec"]["podSelector"] == {"matchExpressions": [{"key": "dapo.io/job", "operator": "Exists"}]}
        assert not allowed(policy, address)


@pytest.mark.parametrize("address", ["1.1.1.1", "10.0.0.1", "2606:4700::1"])
def test_a21_jobs_reach_what_they_download(address: str) -> None:
    policy = named(rendered("teams"), "NetworkPolicy", "dapo-job-egress", TEAMS[0]["name"])
    assert allowed(policy, address)
    assert {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]} in policy["spec"]["egress"]


def test_a21_a_site_names_what_jobs_may_reach() -> None:
    to = [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    objects = with_values({"jobNamespaces": TEAMS, "networkPolicies": {"jobEgress": {"to": to}}})
    policy = named(objects, "NetworkPolicy", "dapo-job-egress", TEAMS[0]["name"])
    assert allowed(policy, "203.0.113.9") and not allowed(policy, "1.1.1.1")
    none = with_values({"jobNamespaces": TEAMS, "networkPolicies": {"jobEgress": {"enabled": False}}})
    assert not any(each["metadata"]["name"].endswith("job-egress") for each in none)


def test_a21_no_pod_of_a_job_namespace_reaches_the_operators_port() -> None:
    [rule] = named(rendered("teams"), "NetworkPolicy", "dapo-operator")["spec"]["ingress"]
    [expression] = rule["from"][0]["namespaceSelector"]["matchExpressions"]
    assert expression["operator"] == "NotIn" and expression["values"] == [team["name"] for team in TEAMS]


def test_a17_a_namespace_holds_a_limited_number_of_jobs() -> None:
    """Where the site wants it: Kubernetes rejects jobs until it has counted them for the first time."""
    limited = with_values({"jobNamespaces": TEAMS, "jobs": {"maxPerNamespace": 200}})
    for team in TEAMS:
        quota = named(limited, "ResourceQuota", "dapo", team["name"])
        assert quota["spec"]["hard"] == {"count/dapojobs.dapo.io": "200"}
    assert not any(each["kind"] == "ResourceQuota" for each in rendered("teams"))
