"""A job without its secrets, as everybody who may see the run sees it. Pure."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

HIDDEN: Final = "(hidden)"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "token", "credential", "credentials", "apikey", "auth", "cookie"}
)
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key")})
# Well-known formats of keys, in any field.
_SECRET_VALUE: Final = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{12,}|xox[abp]-[\w-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def without_secrets(value: Any) -> Any:
    """The same structure, with the values of environment variables and whatever looks like a secret replaced."""
    if isinstance(value, Mapping):
        return {str(name): _field(str(name), content) for name, content in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [without_secrets(item) for item in value]
    return _text(value) if isinstance(value, str) else value


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


def _text(text: str) -> str:
    if _SECRET_VALUE.search(text):
        return HIDDEN
    return _without_password(text) if "://" in text and "@" in text else text


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{HIDDEN}@{parts.netloc.rpartition('@')[2]}"))
