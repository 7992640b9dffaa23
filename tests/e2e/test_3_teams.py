"""A second team's credentials reach nothing of the first team's, whose job trains meanwhile."""

import json
import os

import pytest
from e2e_installation import OTHER_TEAM, TEAM, Installation, Object

from dapo_core.db import open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store


def test_rows(platform: Installation) -> None:
    with platform.stores(OTHER_TEAM) as secret:
        assert open_reader(secret["DAPO_METADATA_URL"]).runs() == []


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
            with pytest.raises(StoreError, match="may not"):
                attempt()


def stranger(like: Object, command: list[str]) -> Object:
    """A pod with the image of a job's pod and a Ray token of its own."""
    container = like["spec"]["containers"][0]
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "HOME": "/tmp"}
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
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                    "securityContext": {**container["securityContext"], "readOnlyRootFilesystem": False},
                }
            ],
        },
    }


def test_ray_cluster(platform: Installation) -> None:
    """The same knock at the head's door: the job's own pods are let in, a pod of the second team is not."""
    rollout = next(pod for pod in platform.pods().values() if pod["metadata"]["labels"]["dapo.io/role"] == "rollout")
    environment = rollout["spec"]["containers"][0]["env"]
    head = next(each["value"] for each in environment if each["name"] == "DAPO_HEAD_ADDRESS")
    knock = ["timeout", "90", "ray", "health-check", "--address", head]
    platform.kubectl("--namespace", TEAM, "exec", rollout["metadata"]["name"], "--", *knock)
    manifest = json.dumps(stranger(rollout, knock))
    platform.kubectl("--namespace", OTHER_TEAM, "apply", "--filename", "-", given=manifest)

    def exit_code() -> str | None:
        """As text: a 0 is an end too."""
        states = platform.get("pod", "stranger", OTHER_TEAM)["status"].get("containerStatuses", [])
        return next(
            (str(each["state"]["terminated"]["exitCode"]) for each in states if "terminated" in each["state"]), None
        )

    code = platform.wait("the stranger's end", exit_code, 150)
    said = platform.kubectl("--namespace", OTHER_TEAM, "logs", "stranger")
    platform.kubectl("--namespace", OTHER_TEAM, "delete", "pod", "stranger", "--wait=false")
    # Where NetworkPolicies are enforced it gets no answer at all, and `timeout` ends it with 124.
    assert (code == "1" and "InvalidAuthToken" in said) or code == "124", f"{code}: {said}"
