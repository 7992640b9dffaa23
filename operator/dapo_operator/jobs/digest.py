"""Telling by twelve digits whether an object is as it should be. Pure."""

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits that change when the value does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
