"""The interface of custom reward functions: `reward: {type: custom, module: "package.module:function"}`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Protocol, TypedDict

Detail = float | bool | str
DETAILS = 32
DETAIL_CHARACTERS = 300


class Judgement(TypedDict):
    """`score`: the reward before length penalties. `correct`: for accuracy and dynamic sampling; default: score > 0.

    `predicted`: the answer that was extracted, for maj@k. Any other key is a detail of the response, a number or a
    short text, and is stored with the samples.
    """

    score: float
    correct: NotRequired[bool]
    predicted: NotRequired[str]


class RewardFunction(Protocol):
    """Called with one response at a time, in a separate process with limits of time and memory."""

    def __call__(self, response: str, truth: str, *, prompt: str) -> float | Judgement | Mapping[str, Any]: ...


def check_signature(function: Callable[..., Any], name: str) -> None:
    """Raises TypeError when `function` cannot be called as a RewardFunction."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return
    try:
        signature.bind("", "", prompt="")
    except TypeError as error:
        raise TypeError(
            f"{name}{signature} cannot be called as {name}(response, truth, prompt=...): {error}"
        ) from error


def details_of(fields: Mapping[str, Any]) -> dict[str, Detail]:
    """The details among what a function returned: numbers and texts, truncated to their limits."""
    extra = [(str(name), value) for name, value in fields.items() if name not in Judgement.__annotations__]
    return {name: _plain(value) for name, value in extra[:DETAILS]}


def _plain(value: Any) -> Detail:
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:DETAIL_CHARACTERS]
