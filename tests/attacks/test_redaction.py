"""Secrets that a job carries in the places where people put them, as other viewers see them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_dashboard.reads.redact import HIDDEN, without_secrets

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
