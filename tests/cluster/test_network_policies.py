"""What the process cluster's node lets through; that it does, `make e2e` sees."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tests" / "kit" / "cluster" / "network_policies.py"
ruleset = runpy.run_path(str(SCRIPT))["ruleset"]
Object = dict[str, Any]


def pod(address: str, namespace: str, phase: str = "Running", host: bool = False, **labels: str) -> Object:
    return {
        "metadata": {"namespace": namespace, "labels": labels},
        "spec": {"hostNetwork": host},
        "status": {"phase": phase, "podIP": address},
    }


def policy(**spec: Any) -> Object:
    return {"metadata": {"name": "some", "namespace": "a"}, "spec": {"podSelector": {}, **spec}}


NAMESPACES = [{"metadata": {"name": name, "labels": {"team": name}}} for name in ("a", "b")]
PODS = [
    pod("10.0.0.1", "a", app="store"),
    pod("10.0.0.2", "a", app="page"),
    pod("10.0.0.3", "b", app="page"),
    pod("10.0.0.4", "a", phase="Succeeded", app="page"),
    pod("10.0.0.5", "a", host=True, app="page"),
    pod("", "a", phase="Pending", app="page"),
]
STORE, PAGE = {"matchLabels": {"app": "store"}}, {"matchLabels": {"app": "page"}}
CLOSED = "ip daddr { 10.0.0.1 } drop"
CASES: dict[str, tuple[Object, list[str]]] = {
    "nobody is chosen": (policy(podSelector={"matchLabels": {"app": "none"}}), []),
    "nothing is allowed": (policy(podSelector=STORE), [CLOSED]),
    "everybody": (policy(podSelector=STORE, ingress=[{}]), ["ip daddr { 10.0.0.1 } return", CLOSED]),
    "pods of the namespace": (
        policy(podSelector=STORE, ingress=[{"from": [{"podSelector": PAGE}], "ports": [{"port": 5432}]}]),
        ["ip daddr { 10.0.0.1 } ip saddr { 10.0.0.2 } tcp dport 5432-5432 return", CLOSED],
    ),
    "pods of every namespace": (
        policy(podSelector=STORE, ingress=[{"from": [{"podSelector": PAGE, "namespaceSelector": {}}]}]),
        ["ip daddr { 10.0.0.1 } ip saddr { 10.0.0.2, 10.0.0.3 } return", CLOSED],
    ),
    "one namespace whole": (
        policy(podSelector=STORE, ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]}]),
        ["ip daddr { 10.0.0.1 } ip saddr { 10.0.0.3 } return", CLOSED],
    ),
    "peers that are not there": (
        policy(podSelector=STORE, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "none"}}}]}]),
        [CLOSED],
    ),
    "expressions": (
        policy(
            podSelector={
                "matchExpressions": [
                    {"key": "app", "operator": "In", "values": ["store", "page"]},
                    {"key": "app", "operator": "NotIn", "values": ["page"]},
                    {"key": "app", "operator": "Exists"},
                    {"key": "other", "operator": "DoesNotExist"},
                ]
            }
        ),
        [CLOSED],
    ),
    "addresses but for some": (
        policy(
            podSelector=STORE,
            ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
        ),
        ["ip daddr { 10.0.0.1 } ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16 } return", CLOSED],
    ),
    "IPv6, which no pod here has": (
        policy(podSelector=STORE, ingress=[{"from": [{"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}}]}]),
        [CLOSED],
    ),
    "ports": (
        policy(
            podSelector=STORE,
            ingress=[{"ports": [{"port": 1, "endPort": 9}, {"port": 53, "protocol": "UDP"}, {"protocol": "SCTP"}]}],
        ),
        [
            "ip daddr { 10.0.0.1 } tcp dport 1-9 return",
            "ip daddr { 10.0.0.1 } udp dport 53-53 return",
            "ip daddr { 10.0.0.1 } meta l4proto sctp return",
            CLOSED,
        ],
    ),
    "a named port allows nothing": (policy(podSelector=STORE, ingress=[{"ports": [{"port": "http"}]}]), [CLOSED]),
    "outwards": (
        policy(podSelector=STORE, policyTypes=["Egress"], egress=[{"to": [{"podSelector": PAGE}]}]),
        ["ip saddr { 10.0.0.1 } ip daddr { 10.0.0.2 } return", "ip saddr { 10.0.0.1 } drop"],
    ),
    "both ways": (
        policy(podSelector=STORE, policyTypes=["Ingress", "Egress"], egress=[]),
        [CLOSED, "ip saddr { 10.0.0.1 } drop"],
    ),
}


def rules(*policies: Object) -> list[str]:
    return [line for line in ruleset(PODS, NAMESPACES, policies).splitlines() if line.startswith("ip ")]


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES.keys())
def test_rules(given: Object, expected: list[str]) -> None:
    assert rules(given) == expected


def test_what_one_policy_allows_no_other_forbids() -> None:
    closed, opened = policy(podSelector=STORE), policy(podSelector=STORE, ingress=[{}])
    assert rules(closed, opened) == ["ip daddr { 10.0.0.1 } return", CLOSED, CLOSED]
