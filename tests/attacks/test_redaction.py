"""Secrets that a job carries in the places where people put them, as other viewers see them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_core.errors import StoreError
from dapo_core.run.last_words import ending
from dapo_core.run.redaction import HIDDEN, without_secrets
from dapo_operator.jobs.observed import pod_of

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "value",
    [
        {"args": [f"--password={SECRET}"]},
        {"args": ["--api-key", SECRET]},
        {"args": ["serve", "--auth-token", SECRET, "--port", "80"]},
        {"wandb_key": SECRET},
        {"pass": SECRET},
        {"header": f"Authorization: Bearer {SECRET}"},
        {"dsn": f"postgresql://user:{SECRET}@host:5432/db"},
        {"dsn": f"host=db user=dapo password={SECRET}"},
        {"uri": f"https://x/y?sv=1&sig={SECRET}"},
        {"uri": f"s3://bucket/x?endpoint=http://user:{SECRET}@minio:9000"},
        {"note": f"see postgresql://u:{SECRET}@a/b and http://u:{SECRET}@c"},
        {"uri": f"https://{SECRET}@host/x"},
    ],
    ids=json.dumps,
)
def test_a21_secrets_are_hidden_where_people_put_them(value: dict[str, Any]) -> None:
    shown = json.dumps(without_secrets(value))
    assert SECRET not in shown and HIDDEN in shown


@pytest.mark.parametrize(
    "value",
    [
        {"args": ["--port", "8080", "--max-tokens=512"]},
        {"uri": "s3://bucket/x?endpoint=http://minio:9000&pathStyle=true"},
        {"secretName": "mine", "maxTokens": 7},
        {"note": "reward = mean: 0.5"},
        {"email": "somebody@example.org"},
    ],
    ids=json.dumps,
)
def test_a21_what_is_no_secret_stays(value: dict[str, Any]) -> None:
    assert without_secrets(value) == value


@given(st.text(max_size=300))
def test_a21_any_text_is_redacted_without_an_error(text: str) -> None:
    assert isinstance(without_secrets(text), str)


@pytest.mark.parametrize("part", ["a.", "://", ":", "://:", "-", "a=", "@", "Bearer ", "a: ", " "])
def test_a21_a_long_text_is_redacted_in_linear_time(part: str) -> None:
    """A pattern that backtracks would take minutes here."""
    without_secrets("x://" + part * (200_000 // len(part)))


LOG = f"""Traceback (most recent call last):
  config = {{'db_password': '{SECRET}', "api_key": "{SECRET}", 'steps': 30}}
OperationalError: connection to postgresql://writer:{SECRET}@db:5432/dapo failed"""


def ended(message: str) -> dict[str, Any]:
    return {"name": "dapo", "state": {"terminated": {"exitCode": 1, "message": message}}}


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"containerStatuses": [ended(LOG)]}, id="the end of a log"),
        pytest.param({"containerStatuses": [ended("x" * 3000 + LOG)]}, id="the end of a long log"),
        pytest.param(
            {"containerStatuses": [ended(json.dumps({"reason": "Crashed", "message": LOG}))]}, id="last words"
        ),
        pytest.param({"initContainerStatuses": [ended(LOG)]}, id="an init container"),
    ],
)
def test_a21_the_end_of_a_log_is_shown_without_secrets(status: dict[str, Any]) -> None:
    """Conditions, events and pages show it, to whoever may see the run."""
    metadata = {"name": "a", "labels": {"dapo.io/role": "head", "dapo.io/attempt": "1", "dapo.io/index": "0"}}
    pod = pod_of({"metadata": metadata, "spec": {}, "status": {"phase": "Failed", **status}})
    assert pod is not None
    shown = pod.words.message if pod.words is not None else pod.detail or ""
    assert SECRET not in shown and HIDDEN in shown and "postgresql://" in shown


def test_a21_a_process_leaves_no_secret_in_its_last_words() -> None:
    _, words = ending(StoreError(LOG))
    assert SECRET not in words.message and "'steps': 30" in words.message
