"""What every condition and reason means and what to do about it: the source of the tables and runbooks of
docs/operator.md, written into it by `python -m dapo_operator.handbook --write`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.run.guards import HEALTH_RULES
from dapo_core.run.reasons import Reason
from dapo_core.run.status import ConditionType

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operator.md"
BEGIN: Final = "<!-- made by python -m dapo_operator.handbook --write -->"
END: Final = "<!-- end of what is made -->"


@dataclass(frozen=True)
class Entry:
    """A reason of a condition: what it means, and what a person does about it (empty: nothing)."""

    meaning: str
    remedy: str = ""


@dataclass(frozen=True)
class Runbook:
    """A condition: what it says, what follows from its bad state, where to look, and its reasons."""

    meaning: str
    impact: str
    diagnosis: str
    reasons: dict[str, Entry]


_LOGS: Final = "`kubectl logs {job}-head-{attempt}-0`"
_PODS: Final = "`kubectl get pods -l dapo.io/job={job}` and `kubectl describe pod` of one that is not ready"
_STORE: Final = "`dapo show {run}` or the run's page"

_RETRIED: Final = "Nothing; it is tried again by itself, and the attempts' list says how often."
_GUARDS: Final[dict[str, Entry]] = {name: Entry(rule.meaning, rule.remedy) for name, rule in HEALTH_RULES.items()}

RUNBOOKS: Final[dict[ConditionType, Runbook]] = {
    "SpecAccepted": Runbook(
        "Whether the spec as it is now can be used.",
        "False: no next attempt starts. A running one goes on as it was.",
        "The condition's message names each field with its remedy.",
        {
            Reason.SPEC_ACCEPTED: Entry("The spec is used."),
            Reason.APPLIES_NEXT_ATTEMPT: Entry(
                "The pods' part of the spec was changed while an attempt runs.",
                "Nothing, or set `suspend` to true and false again to have it at once.",
            ),
            Reason.INVALID_SPEC: Entry("Something can not be used.", "Correct the fields that the message names."),
        },
    ),
    "Suspended": Runbook(
        "True: the job holds no pods because somebody or something wants it so.",
        "Nothing is trained; the newest checkpoint is kept.",
        "The message says who suspended it and how it goes on.",
        {
            Reason.SUSPENDED_BY_USER: Entry("`spec.suspend` is true.", "Set it to false."),
            Reason.SUSPENDED_BY_GUARD: Entry(
                "A guard with action Suspend holds.",
                "Look at the curves; any change of the spec lets the job go on, and the guard is asked again after "
                "`forSteps` steps.",
            ),
            Reason.SUSPENDED_BY_SAMPLING: Entry(
                "Dynamic sampling found no batch, and `onExhausted` is Suspend.",
                "Prompts are too easy or too hard: change what may be changed of the spec, or make a new job.",
            ),
            Reason.RESUMED: Entry("The job goes on."),
        },
    ),
    "QuotaReserved": Runbook(
        "Whether Kueue, or the controller of `spec.managedBy`, lets the job's pods in.",
        "False: the pods wait, and hold nothing.",
        "`kubectl get workloads,localqueues` in the job's namespace.",
        {
            Reason.WAITING_FOR_QUOTA: Entry("Not yet.", "Wait, or ask for less or for another queue."),
            Reason.QUOTA_RESERVED: Entry("The pods were admitted."),
        },
    ),
    "PodsReady": Runbook(
        "Whether all pods of the newest attempt are ready.",
        "False while an attempt starts or ends; for longer, nothing is trained.",
        _PODS + ".",
        {
            Reason.PODS_READY: Entry("All are."),
            Reason.STARTING: Entry("The pods are being made, or their containers start."),
            Reason.UNSCHEDULABLE: Entry(
                "The scheduler finds no node; its own words follow.",
                "Free or add nodes, correct the node selector or the claim that it names, or use a gang scheduler.",
            ),
            Reason.CONTAINER_WAITING: Entry(
                "A container can not start (image, Secret, claim), or a pod is not ready any more.",
                "Repair what the message names. A changed image starts the attempt anew at once.",
            ),
            Reason.QUOTA_EXCEEDED: Entry(
                "A ResourceQuota refuses a pod; those that are there are kept until startTimeoutSeconds.",
                "Raise the quota or ask for less; it is tried again within five minutes.",
            ),
            Reason.NAME_TAKEN: Entry(
                "An object of a name that the job needs belongs to somebody else, or to an earlier job of its name.",
                "Wait until that is gone, remove it, or give the job another name.",
            ),
            Reason.GANG_SCHEDULER_MISSING: Entry(
                "The cluster knows no PodGroup of `runPolicy.gang.scheduler`.", "Install it, or choose another."
            ),
            Reason.API_REFUSED: Entry("The API server refuses a child; its own words follow.", "Repair what they say."),
            Reason.POD_REFUSED: Entry("See condition Failed."),
            Reason.INVALID_SPEC: Entry("See condition SpecAccepted."),
            Reason.BACKING_OFF: Entry("The next attempt starts at the time in the message."),
            Reason.ENDING: Entry("The pods are told to go, the head first, so that it can save."),
            Reason.WAITING_FOR_QUOTA: Entry("See condition QuotaReserved."),
            Reason.COMPLETED: Entry("The run is complete; its pods are kept for their logs."),
        },
    ),
    "Training": Runbook(
        "Whether an attempt is at work.",
        "False: see the reason.",
        _LOGS + ".",
        {
            Reason.TRAINING: Entry("All pods were ready, and the driver works."),
            Reason.STARTING: Entry("An attempt starts."),
            Reason.ENDING: Entry("An attempt ends; the message says why."),
            Reason.RESTARTING: Entry("An attempt ended and another follows."),
            Reason.INVALID_SPEC: Entry("See condition SpecAccepted."),
            Reason.DELETED: Entry("The job was deleted."),
            Reason.COMPLETED: Entry("The run is complete."),
        },
    ),
    "Stalled": Runbook(
        "True: the last attempt finished no step for `stallTimeoutSeconds`, and was ended.",
        "The attempt's work since its last checkpoint is lost; a restart is counted.",
        _LOGS + ", which holds the stacks of the hung processes.",
        {
            Reason.STALLED: Entry(
                "It hung.", "If it hangs again at the same place, raise the limit or see the stacks."
            ),
            Reason.TRAINING: Entry("A new attempt is at work."),
        },
    ),
    "Degraded": Runbook(
        "True: guards hold, by the names in the message.",
        "Training goes on unless the guard's action is Suspend or Fail.",
        _STORE + ".",
        {
            Reason.HEALTHY: Entry("None holds."),
            Reason.GUARD: Entry("Several hold.", "See each one's entry here."),
            **_GUARDS,
        },
    ),
    "ProgressKnown": Runbook(
        "Whether the operator can read the metadata store.",
        "False: no progress is shown, and neither stalls nor guards end an attempt. Training goes on.",
        "The operator's log.",
        {
            Reason.PROGRESS_READ: Entry("It can."),
            Reason.NO_METADATA_STORE: Entry("It was given none.", "Set `DAPO_METADATA_URL`."),
            Reason.METADATA_UNREACHABLE: Entry("It does not answer.", "Bring the database back; nothing is lost."),
        },
    ),
    "Succeeded": Runbook(
        "True: the run is complete.",
        "",
        _STORE + ".",
        {Reason.COMPLETED: Entry("The driver ended with 0.")},
    ),
    "Failed": Runbook(
        "True: no further attempt is made.",
        "Nothing is trained. Curves and checkpoints stay; `checkpoints.resumeFrom` of a new job goes on from them.",
        "The message has the trainer's own last words; " + _LOGS + ".",
        {
            Reason.INVALID_SPEC: Entry(
                "The spec can not be used, or the trainer refused it (10).", "Change the spec, and the job goes on."
            ),
            Reason.POD_REFUSED: Entry(
                "The API server will not take the pods: PodSecurity, or a template it does not understand.",
                "Change the template, and the job goes on; a change of the namespace's labels is noticed in a minute.",
            ),
            Reason.USAGE: Entry(
                "The command line of the container is wrong (2).", "Correct the image or the template's command."
            ),
            Reason.BAD_DATA: Entry("A data file can not be trained on (11).", "Correct the file; make a new job."),
            Reason.MODEL_UNLOADABLE: Entry("The model can not be loaded (12).", "Correct it; make a new job."),
            Reason.TOO_MANY_RESTARTS: Entry(
                "`maxRestarts` counted restarts are used up.", "See the attempts' reasons, and repair what they name."
            ),
            Reason.DEADLINE_EXCEEDED: Entry("`activeDeadlineSeconds` have passed.", "Allow more, in a new job."),
            Reason.SAMPLING_EXHAUSTED: Entry("Dynamic sampling found no batch, and `onExhausted` is Fail."),
            Reason.RESUMED: Entry("What was refused has been repaired."),
            **_GUARDS,
        },
    ),
}

ATTEMPT_REASONS: Final[dict[str, Entry]] = {
    Reason.COMPLETED: Entry("The run is complete."),
    Reason.OUT_OF_MEMORY: Entry("A container used more than its memory; counted.", "Raise `resources.memory`."),
    Reason.KILLED: Entry("A process was killed (137); counted.", _RETRIED),
    Reason.CRASHED: Entry("A process ended with an exit code that says nothing; counted.", "See the log."),
    Reason.DISTRIBUTED_FAULT: Entry("Ray or NCCL failed, or a pod was lost (30); counted.", _RETRIED),
    Reason.CHECKPOINT_UNUSABLE: Entry(
        "A checkpoint is missing, corrupt or does not fit the job (31); counted.",
        "The message names it; `dapo checkpoints verify {run}` checks all of the run's.",
    ),
    Reason.STORES_UNREACHABLE: Entry("A store did not answer for too long (31); counted.", "Bring it back."),
    Reason.STALLED: Entry("No step for `stallTimeoutSeconds`; counted.", "See condition Stalled."),
    Reason.START_TIMEOUT: Entry(
        "Not all pods were ready within `startTimeoutSeconds`. Counted only when all processes ran.",
        "The message says what the pods waited for.",
    ),
    Reason.EVICTED: Entry("A node evicted a pod; not counted.", _RETRIED),
    Reason.PREEMPTED: Entry("A pod had to give way to one of higher priority; not counted.", _RETRIED),
    Reason.NODE_LOST: Entry("A node was lost; not counted.", _RETRIED),
    Reason.POD_DELETED: Entry("Somebody deleted a pod; not counted.", _RETRIED),
    Reason.TERMINATED: Entry("A process was asked to stop, and did (143); not counted.", _RETRIED),
    Reason.SUSPENDED_BY_USER: Entry("`spec.suspend` was set."),
    Reason.SPEC_CHANGED: Entry("The spec was changed while the pods were starting; not counted."),
    Reason.POD_REFUSED: Entry("See condition Failed."),
    Reason.DELETED: Entry("The job was deleted."),
    **_GUARDS,
}


def text() -> str:
    """The generated part of the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "### Reasons of attempts"
    yield ""
    yield from _table(ATTEMPT_REASONS)
    for kind, book in RUNBOOKS.items():
        yield ""
        yield f"### {kind}"
        yield ""
        yield f"**Meaning.** {book.meaning}"
        if book.impact:
            yield f"**Impact.** {book.impact}"
        yield f"**Diagnosis.** {book.diagnosis}"
        yield ""
        yield from _table(book.reasons)


def _table(entries: dict[str, Entry]) -> Iterator[str]:
    yield "| reason | meaning | remedy |"
    yield "|---|---|---|"
    for reason, entry in entries.items():
        yield f"| `{reason}` | {entry.meaning} | {entry.remedy} |"


def page(old: str) -> str:
    """The page with its generated part as it should be. Raises ValueError when it has no place for it."""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """0 when the page is fresh or was written, 1 when --check found it stale, 2 for wrong usage."""
    if arguments not in (["--check"], ["--write"]):
        print("usage: python -m dapo_operator.handbook --check | --write", file=sys.stderr)
        return 2
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if arguments == ["--check"]:
        print("fresh" if new == old else f"{PAGE.name} is stale: run python -m dapo_operator.handbook --write")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
