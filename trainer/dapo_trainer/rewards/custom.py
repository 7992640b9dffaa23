"""The interface of custom reward functions: `reward: {type: custom, module: "package.module:function"}` or `file`."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


Score = float | Judgement | Mapping[str, Any]


class RewardFunction(Protocol):
    """Called with one response at a time, in a separate process with limits of time and memory. May be `async`.

    `extra_info` is the data row's column of that name, empty without one; a function that has no such parameter is
    called without it.
    """

    def __call__(
        self, response: str, truth: str, *, prompt: str, extra_info: Mapping[str, Any]
    ) -> Score | Awaitable[Score]: ...


class GroupRewardFunction(Protocol):
    """The same with all responses to a prompt at once, for `perGroup: true`: a score for each, in their order."""

    def __call__(
        self, responses: list[str], truth: str, *, prompt: str, extra_info: Mapping[str, Any]
    ) -> Sequence[Score] | Awaitable[Sequence[Score]]: ...


def check_signature(function: Callable[..., Any], name: str) -> None:
    """Raises TypeError when `function` cannot be called as a RewardFunction."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return
    extra: dict[str, Any] = {"extra_info": {}} if takes_extra_info(function) else {}
    try:
        signature.bind("", "", prompt="", **extra)
    except TypeError as error:
        raise TypeError(
            f"{name}{signature} cannot be called as {name}(response, truth, prompt=...): {error}"
        ) from error


def takes_extra_info(function: Callable[..., Any]) -> bool:
    """Whether `function` has a parameter for the row's `extra_info`."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return False
    return "extra_info" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def details_of(fields: Mapping[str, Any]) -> dict[str, Detail]:
    """The details among what a function returned: numbers and texts, truncated to their limits."""
    extra = [(str(name), value) for name, value in fields.items() if name not in Judgement.__annotations__]
    return {name: _plain(value) for name, value in extra[:DETAILS]}


def _plain(value: Any) -> Detail:
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:DETAIL_CHARACTERS]
