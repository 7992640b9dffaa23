"""Steps as a trainer records them: groups, and responses token by token."""

from dataclasses import replace

from dapo_core.naming import groups_key, tokens_key
from dapo_core.objectstore import open_store
from dapo_core.run.recording import Fate, RecordedGroup, RecordedResponse, prompt_id
from dapo_trainer.groups.group_records import groups_parquet, responses_parquet

HOSTILE = "<img src=x onerror='window.hacked=1'> **bold** $x^2$ [link](javascript:window.hacked=1)"
G = 4
WORDS = ("The", " sum", " of", " 2", " and", " 2", " is", " 4", ".")


def group(uid: str, prompt: str = "2+2=?", right: int = 2, recorded: bool = True) -> RecordedGroup:
    """A group of four; one without a right response is left out."""
    correct = [number < right for number in range(G)]
    return RecordedGroup(
        uid=uid, prompt_id=prompt_id("math", prompt), source="math", prompt=prompt, ground_truth="4",
        fate=Fate.TRAINED if right else Fate.ALL_WRONG, rewards=[1.0 if each else -1.0 for each in correct],
        lengths=[9] * G, correct=correct, advantages=[1.0 if each else -1.0 for each in correct] if right else [],
        submitted_at=100.0, finished_at=110.0, decided_at=112.5, tokens_recorded=recorded,
    )  # fmt: skip


def response(uid: str, number: int, prompt: str = "2+2=?", text: str = "") -> RecordedResponse:
    """A response of nine tokens, the last of them masked, one clipped."""
    pieces = [text or WORDS[0], *WORDS[1:]]
    count = len(pieces)
    return RecordedResponse(
        uid=uid, number=number, prompt=prompt, response="".join(pieces), ground_truth="4", source="math",
        reward=1.0 if number < 2 else -1.0, advantage=1.0 if number < 2 else -1.0, correct=number < 2, truncated=False,
        check='{"score": 1.0, "predicted": "4"}', token_ids=list(range(count)), pieces=pieces,
        rollout_log_probs=[-0.25 * place for place in range(count)],
        trainer_log_probs=[-0.25 * place for place in range(count)], weights=[1.0] * count,
        entropies=[0.5] * count, has_loss=[place < count - 1 for place in range(count)],
        clipped=[int(place == 3) for place in range(count)],
    )  # fmt: skip


def record_step(
    url: str, run_id: str, step: int, *, attempt: int = 1, groups: int = 2, text: str = "", recorded: int = 2
) -> None:
    """Groups of a step, every third of them all wrong, and the tokens of the first ones."""
    store = open_store(url)
    prompt = text or "2+2=?"
    made = [
        replace(group(f"g{number}", prompt, right=0 if number % 3 == 2 else 2), tokens_recorded=number < recorded)
        for number in range(groups)
    ]
    responses = [response(one.uid, number, prompt, text) for one in made[:recorded] for number in range(G)]
    store.put_bytes(tokens_key(run_id, step, attempt), responses_parquet(responses))
    store.put_bytes(groups_key(run_id, step, attempt), groups_parquet(made))
