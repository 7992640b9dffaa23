"""A second team's credentials reach nothing of the first team's, whose job trains meanwhile."""

import json
import os

import pytest
from e2e_installation import NAMESPACE, OTHER_TEAM, RELEASE, TEAM, Installation, Object

from dapo_core.db import open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_trainer.pod.gate import PORT as GATE_PORT


@pytest.mark.main_story
def test_rows(platform: Installation) -> None:
    with platform.stores(OTHER_TEAM) as secret:
        assert open_reader(secret["DAPO_METADATA_URL"]).runs() == []


@pytest.mark.main_story
def test_objects(platform: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform.stores(OTHER_TEAM) as secret:
        for name, value in secret.items():
            monkeypatch.setenv(name, value)
        theirs = open_store(os.environ["DAPO_STORE_URL"].replace(OTHER_TEAM, TEAM))
        for attempt in (
            lambda: list(theirs.list("")),
            lambda: theirs.get_bytes("arithmetic/made.json"),
            lambda: theirs.put_bytes("arithmetic/made.json", b""),
            lambda: theirs.delete("arithmetic/made.json"),
        ):
            with pytest.raises(StoreError, match="do not permit"):
                attempt()


KNOCK = """
import json, socket, sys

def answer(door):
    host, port = door.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except TimeoutError:
        return "silence"
    return "open"

print(json.dumps({door: answer(door) for door in sys.argv[1:]}))
"""


def stranger(like: Object, command: list[str]) -> Object:
    """A pod of no job, with the image of a job's pod."""
    container = like["spec"]["containers"][0]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": like["spec"]["securityContext"],
            "containers": [
                {
                    "name": "stranger",
                    "image": container["image"],
                    "imagePullPolicy": container["imagePullPolicy"],
                    "command": command,
                    "securityContext": container["securityContext"],
                }
            ],
        },
    }


def heard_by_a_stranger(platform: Installation, like: Object, command: list[str]) -> str:
    """What a pod of the other team prints that runs this command."""
    manifest = json.dumps(stranger(like, command))
    platform.kubectl("--namespace", OTHER_TEAM, "apply", "--filename", "-", given=manifest)
    platform.wait(
        "the stranger's end",
        lambda: platform.get("pod", "stranger", OTHER_TEAM)["status"]["phase"] in ("Succeeded", "Failed"),
        150,
    )
    heard = platform.kubectl("--namespace", OTHER_TEAM, "logs", "stranger")
    platform.kubectl("--namespace", OTHER_TEAM, "delete", "pod", "stranger", "--grace-period=0", "--force")
    return heard


@pytest.mark.main_story
def test_network(platform: Installation) -> None:
    """The same knock at the doors of the job and the stores: the job's own pod is let in, a stranger hears nothing."""
    name, rollout = a_rollout(platform)
    doors = [head_address(rollout), f"{RELEASE}-postgres.{NAMESPACE}.svc:5432", f"{RELEASE}-minio.{NAMESPACE}.svc:9000"]
    knock = ["python", "-c", KNOCK, *doors]
    heard = platform.kubectl("--namespace", TEAM, "exec", name, "--", *knock)
    assert json.loads(heard) == dict.fromkeys(doors, "open")
    heard = heard_by_a_stranger(platform, rollout, knock)
    assert json.loads(heard) == dict.fromkeys(doors, "silence"), "does this cluster enforce NetworkPolicies?"


def test_ray_cluster(platform: Installation) -> None:
    """Should the network let somebody through, Ray asks for the job's token."""
    name, rollout = a_rollout(platform)
    knock = ["timeout", "90", "ray", "health-check", "--address", head_address(rollout)]
    inside = ["--namespace", TEAM, "exec", name, "--"]
    platform.kubectl(*inside, *knock)
    with pytest.raises(AssertionError, match="InvalidAuthToken"):
        platform.kubectl(*inside, "env", f"RAY_AUTH_TOKEN={'0' * 64}", *knock)


OPEN: Object = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "open-for-a-test"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]},
}
# At the gate of the driver, as a pod of another job that has no token would try it.
FORCE = """
import json, socket, sys

host, port = sys.argv[1].rsplit(":", 1)
with socket.create_connection((host, int(port)), timeout=30) as gate, gate.makefile("rwb") as stream:
    nonce = json.loads(stream.readline())["nonce"]
    stream.write(json.dumps({"nonce": nonce, "proof": nonce}).encode() + b'\\n{"leaving": "head"}\\n')
    stream.flush()
    print(json.dumps({"nonce": bool(nonce), "then": stream.read().decode()}))
"""


def test_doubt_1_a_network_that_lets_everybody_through(platform: Installation) -> None:
    """What any policy allows is allowed: with one that allows all, as without any, a stranger reaches the job's pods,
    hears nothing of the job's token at their gate, and ends nothing."""
    _, rollout = a_rollout(platform)
    head, running = head_address(rollout), set(platform.pods())
    platform.kubectl("--namespace", TEAM, "apply", "--filename", "-", given=json.dumps(OPEN))
    try:
        gate = f"{head.rpartition(':')[0]}:{GATE_PORT}"
        knock = ["python", "-c", KNOCK, head, gate]
        platform.wait(
            "the network is open",
            lambda: json.loads(heard_by_a_stranger(platform, rollout, knock)) == {head: "open", gate: "open"},
            150,
        )
        said = heard_by_a_stranger(platform, rollout, ["python", "-c", FORCE, gate])
        assert json.loads(said) == {"nonce": True, "then": ""}
    finally:
        platform.kubectl("--namespace", TEAM, "delete", "networkpolicy", OPEN["metadata"]["name"])
    assert set(platform.pods()) == running, "the stranger has not ended the attempt"


def a_rollout(platform: Installation) -> tuple[str, Object]:
    pods = platform.pods().items()
    return next(each for each in pods if each[1]["metadata"]["labels"]["dapo.io/role"] == "rollout")


def head_address(pod: Object) -> str:
    environment = pod["spec"]["containers"][0]["env"]
    address: str = next(each["value"] for each in environment if each["name"] == "DAPO_HEAD_ADDRESS")
    return address
