"""Enforces NetworkPolicies on the one node of the process cluster, whose bridge plug-in does not.

Usage: network_policies.py SERVER AUTHORITY TOKENS, as process.sh starts it. It needs `nft`.

Watches pods, namespaces and policies, and rewrites one nftables table after each change. As with any network plug-in, a
pod's address is known a moment after the pod has it. Named ports are not supported: a rule with one allows nothing, and
the log says so.
"""

import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

TABLE: Final = "inet dapo_policies"
PATHS: Final = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
}
Object = dict[str, Any]


def ruleset(pods: Iterable[Object], namespaces: Iterable[Object], policies: Iterable[Object]) -> str:
    """The table for `nft -f`, replacing the one that is there."""
    node = Node(pods, namespaces)
    ingress: list[str] = []
    egress: list[str] = []
    for policy in policies:
        kinds = policy["spec"].get("policyTypes", ["Ingress"])
        ingress += node.rules(policy, "ingress", "from", "daddr", "saddr") if "Ingress" in kinds else []
        egress += node.rules(policy, "egress", "to", "saddr", "daddr") if "Egress" in kinds else []
    # What is allowed by any policy is allowed, so all that drops comes last.
    return "\n".join(
        [
            f"table {TABLE}",
            f"delete table {TABLE}",
            f"table {TABLE} {{",
            "chain ingress {",
            *sorted(ingress, key=_drops),
            "}",
            "chain egress {",
            *sorted(egress, key=_drops),
            "}",
            "chain forward {",
            "type filter hook forward priority -10",
            "ct state established,related accept",
            "jump ingress",
            "jump egress",
            "}",
            "chain input {",
            "type filter hook input priority -10",
            "ct state established,related accept",
            "jump egress",
            "}",
            "}",
            "",
        ]
    )


def _drops(rule: str) -> bool:
    return rule.endswith(" drop")


class Node:
    """The pods that have an address of their own, by the labels that policies choose them by."""

    def __init__(self, pods: Iterable[Object], namespaces: Iterable[Object]) -> None:
        self.pods = [pod for pod in pods if _address(pod)]
        self.namespaces = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in namespaces}

    def rules(self, policy: Object, direction: str, peers: str, own: str, other: str) -> Iterator[str]:
        home = policy["metadata"]["namespace"]
        chosen = self.addresses({"podSelector": policy["spec"].get("podSelector", {})}, home)
        if not chosen:
            return
        yield f"ip {own} {_set(chosen)} drop"
        for rule in policy["spec"].get(direction) or []:
            for source in self.sources(rule.get(peers), home, other):
                for ports in _ports(rule.get("ports")):
                    yield " ".join(filter(None, [f"ip {own} {_set(chosen)}", source, ports, "return"]))

    def sources(self, peers: list[Object] | None, home: str, other: str) -> Iterator[str]:
        """Matches for the other end; one that is empty matches everybody."""
        if not peers:
            yield ""
        for peer in peers or []:
            if block := peer.get("ipBlock"):
                if ":" in block["cidr"]:  # no pod here has an IPv6 address
                    continue
                but = f" ip {other} != {_set(block['except'])}" if block.get("except") else ""
                yield f"ip {other} {block['cidr']}{but}"
            elif addresses := self.addresses(peer, home):
                yield f"ip {other} {_set(addresses)}"

    def addresses(self, peer: Object, home: str) -> list[str]:
        """Of the pods that a peer names: without a namespaceSelector those of the policy's namespace."""
        places = {home}
        if (selector := peer.get("namespaceSelector")) is not None:
            places = {name for name, labels in self.namespaces.items() if selects(selector, labels)}
        return sorted(
            _address(pod)
            for pod in self.pods
            if pod["metadata"]["namespace"] in places
            and selects(peer.get("podSelector") or {}, pod["metadata"].get("labels", {}))
        )


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector of Kubernetes; an empty one selects everything."""
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions") or []
    )


def _holds(expression: Object, value: str | None) -> bool:
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"unknown operator in {expression}")


def _address(pod: Object) -> str:
    """Empty for a pod on the node's network, and for one that has ended: its address may be another's by now."""
    if pod["spec"].get("hostNetwork") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return ""
    return str(pod["status"].get("podIP", ""))


def _ports(ports: list[Object] | None) -> Iterator[str]:
    """Matches for ports; one that is empty matches them all."""
    if not ports:
        yield ""
    for each in ports or []:
        protocol, port = each.get("protocol", "TCP").lower(), each.get("port")
        if isinstance(port, str):
            print(f"not understood, allows nothing: the named port {port}", file=sys.stderr)
        elif port is None:
            yield f"meta l4proto {protocol}"
        else:
            yield f"{protocol} dport {port}-{each.get('endPort', port)}"


def _set(values: Iterable[str]) -> str:
    return "{ " + ", ".join(values) + " }"


class Watch:
    """One kind of object, kept up to date by a thread."""

    def __init__(self, server: str, path: str, token: str, tls: ssl.SSLContext, changed: threading.Event) -> None:
        self.address, self.token, self.tls, self.changed = server + path, token, tls, changed
        self.objects: dict[str, Object] = {}
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        while True:
            try:
                self.list_and_watch()
            except (OSError, HTTPException, ValueError) as error:  # a server that ends cuts its answers off
                print(f"{self.address}: {error}", file=sys.stderr)
            time.sleep(1)

    def list_and_watch(self) -> None:
        with self.get("") as answer:
            found = json.load(answer)
        self.objects = {each["metadata"]["uid"]: each for each in found["items"]}
        self.changed.set()
        with self.get(f"?watch=1&resourceVersion={found['metadata']['resourceVersion']}") as events:
            for line in events:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                # A new dictionary each time: the main thread may be reading the old one.
                rest = {uid: each for uid, each in self.objects.items() if uid != event["object"]["metadata"]["uid"]}
                if event["type"] != "DELETED":
                    rest[event["object"]["metadata"]["uid"]] = event["object"]
                self.objects = rest
                self.changed.set()

    def get(self, query: str) -> Any:
        request = Request(self.address + query, headers={"Authorization": f"Bearer {self.token}"})
        return urlopen(request, timeout=3600 if query else 30, context=self.tls)


def main(server: str, authority: str, tokens: str) -> None:
    token = Path(tokens).read_text().split(",", 1)[0]
    tls, changed, written = ssl.create_default_context(cafile=authority), threading.Event(), ""
    watches = {name: Watch(server, path, token, tls, changed) for name, path in PATHS.items()}
    while changed.wait():
        changed.clear()
        table = ruleset(*(list(watches[name].objects.values()) for name in PATHS))
        if table != written:
            subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
            written = table
        time.sleep(0.1)  # changes come in bursts


if __name__ == "__main__":
    main(*sys.argv[1:])
