"""Who reaches the dashboard, and what a values file must not give away, in the chart as Helm renders it."""

import asyncio
from typing import Any

import pytest
from chart_rendering import NAMESPACE, TEAMS, environment, named, pod_templates, refusal, rendered, with_values

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
