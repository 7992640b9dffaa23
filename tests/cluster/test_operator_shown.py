"""What people see of a job: a line of `kubectl get`, and `kubectl describe`."""

import re
import subprocess

from cluster_jobs import BY_HAND, JobOn
from run_reports import report
from servers.kubernetes_objects import kubernetes_tool
from servers.kubernetes_pods import finish, wait

from dapo_core.db import CheckpointRow, WriteBatch, open_reader, open_writer


def kubectl(job: JobOn, *words: str) -> str:
    """What it prints about the job."""
    command = [str(kubernetes_tool("kubectl")), f"--kubeconfig={job.kubernetes.kubeconfig}", "-n", job.namespace]
    return subprocess.run([*command, *words, job.name], check=True, capture_output=True, text=True).stdout


def columns(job: JobOn) -> dict[str, str]:
    """`kubectl get dj`: its columns."""
    head, line = kubectl(job, "get", "dj").splitlines()
    starts = [found.start() for found in re.finditer(r"\S+(?: \S+)*", head)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    return {head[begin:end].strip(): line[begin:end].strip() for begin, end in spans}


def test_the_line_and_the_story_of_a_job(told: JobOn, metadata_url: str) -> None:
    told.submit(schedule={"steps": 100}).wait_phase("Training")
    run, writer, reader = told.status()["runId"], open_writer(metadata_url), open_reader(metadata_url)
    told.wait(lambda: reader.attempts(run), "the attempt is on record")
    report(writer, run, 10)
    writer.write(run, WriteBatch(checkpoints=[CheckpointRow(run, 10, 1, "committed", "s3://b/run/10", 0.0)]))
    told.wait(lambda: told.status().get("checkpoint", {}).get("step") == 10, "its progress")
    line = columns(told)
    assert re.fullmatch(r"\d+[smh]\S*", line.pop("AGE"))
    assert line == {
        "NAME": "told",
        "STATUS": "Training",
        "REASON": "",
        "PODS": "2/2",
        "STEP": "10",
        "REWARD": "0.25",
        "ENTROPY": "0.5",
        "LENGTH": "812",
        "ETA": "45m",
        "RESTARTS": "0",
        "ATTEMPT": "1",
    }

    finish(told.kubernetes.api, told.pod("trainer"), 137, reason="OOMKilled")
    told.wait_attempt(2)
    told.wait(lambda: told.events().count("PodsReady") == 2, "its story")
    assert columns(told)["RESTARTS"] == "1"
    text = kubectl(told, "describe", "dj")
    for sentence in (
        "All 2 pods are ready.",
        "Attempt 2 is running.",
        "Progress is read from the metadata store.",
        "The spec is valid.",
    ):
        assert re.search(rf"Message:\s+{re.escape(sentence)}", text), text
    told_so = [
        r"Attempt 1 starts from the model with pods: 1 head, 1 trainer\.",
        r"All 2 pods are ready after \S+ s in attempt 1\.",
        "told-trainer-1-0 was killed because it exceeded its memory limit: raise spec.topology.trainer",
        r"Attempt 2 starts from the checkpoint of step 10 with pods: 1 head, 1 trainer\.",
        r"All 2 pods are ready after \S+ s in attempt 2\.",
    ]
    happened = text[text.index("Events:") :]
    places = [match.start() if (match := re.search(each, happened)) else -1 for each in told_so]
    assert -1 not in places and places == sorted(places), text


def test_a_condition_names_the_next_step(told: JobOn) -> None:
    told.submit(topology={"trainer": {"podTemplate": BY_HAND}})
    told.wait(lambda: len(told.pods()) == 2, "pods")
    wait(told.kubernetes.api, told.pod("trainer"), "ImagePullBackOff", 'Back-off pulling image "trainer:test"')
    told.wait_reason("PodsReady", "ContainerWaiting")
    assert columns(told)["STATUS"] == "Starting"
    text = kubectl(told, "describe", "dj")
    assert 'ImagePullBackOff: Back-off pulling image "trainer:test". Correct the image or its pull secret' in text
    told.edit(suspend=True)
    told.wait_phase("Suspended")
    assert columns(told)["STATUS"] == "Suspended"
    assert "Set it to false to resume from the newest checkpoint" in kubectl(told, "describe", "dj")
