"""A job, and what its processes said at their end, without secrets, as everybody who may see the run sees it. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS: Final = frozenset(
    {
        "password",
        "passwd",
        "pass",
        "pwd",
        "passphrase",
        "secret",
        "token",
        "credential",
        "credentials",
        "apikey",
        "auth",
        "cookie",
    }
)
_SECRET_PAIRS: Final = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("wandb", "key"), ("account", "key")}
)
# `--password=x`, `name: x` and `'name': 'x'` in one text; the value of a URL's query, such as a signature.
_ASSIGNED: Final = re.compile(r"""(?<![\w.-])(-{0,2}[A-Za-z][\w.-]*)(=["']?|:\s+["']?|["']\s?:\s?["']?)([^\s&;,"']+)""")
_SIGNATURES: Final = re.compile(r"(?<=[?&])((?:sig|signature|x-amz-signature|x-amz-credential)=)[^&\s]+", re.IGNORECASE)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s?#]+@")
# Well-known formats of keys, in any field.
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{12,}|xox[abp]-[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*"
)


def without_secrets(value: Any) -> Any:
    """The same structure, with the values of environment variables and whatever looks like a secret replaced."""
    if isinstance(value, Mapping):
        return {str(name): _field(str(name), content) for name, content in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [*_arguments(value)]
    return text_without_secrets(value) if isinstance(value, str) else value


def text_without_secrets(text: str) -> str:
    """The text, with what looks like a password, a token or a key replaced."""
    text = _SECRET_VALUE.sub(HIDDEN, text)
    text = _USER_INFO.sub(f"{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", _SIGNATURES.sub(rf"\1{HIDDEN}", text))
    return _ASSIGNED.sub(lambda found: f"{found[1]}{found[2]}{HIDDEN}" if _is_secret(found[1]) else found[0], text)


def _field(name: str, content: Any) -> Any:
    if name in {"env", "env_vars", "envVars", "environment"}:
        return _environment(content)
    # The number in `maxTokens` is a length, and `secretName` is the name of a Secret, not its content.
    if isinstance(content, str) and content and _is_secret(name):
        return HIDDEN
    return without_secrets(content)


def _environment(content: Any) -> Any:
    """Values of environment variables are never shown: passwords cannot be distinguished from settings."""
    if isinstance(content, Mapping):
        return {str(name): HIDDEN for name in content}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [
            {key: HIDDEN if key == "value" else kept for key, kept in item.items()}
            if isinstance(item, Mapping)
            else HIDDEN
            for item in content
        ]
    return HIDDEN if content else content


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if words and words[-1] in {"name", "ref", "path", "file"}:
        return False
    return any(word in _SECRET_WORDS for word in words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def _arguments(values: Sequence[Any]) -> Iterator[Any]:
    """The items of a list; in a command line, the one after `--api-key` is its value."""
    hidden = False
    for value in values:
        yield HIDDEN if hidden and isinstance(value, str) else without_secrets(value)
        hidden = isinstance(value, str) and value.startswith("-") and "=" not in value and _is_secret(value)
