"""What a tenant may write, as strategies: any depth, number, encoding and type."""

import json
import os
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES: Final = int(os.environ.get("DAPO_FUZZ_EXAMPLES", "100"))
fuzzed: Final = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Also surrogates, NUL and terminal escapes.
TEXT: Final = st.text(st.characters(codec=None), max_size=80)
NUMBERS: Final = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.sampled_from([10**400, -(10**400), 2**63, -(2**63), 1e308, 5e-324])
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
RAW: Final = st.one_of(
    st.binary(max_size=300),
    st.integers(1, 20_000).map(lambda levels: b"[" * levels),
    st.integers(1, 5_000).map(lambda levels: b'{"a":' * levels + b"1" + b"}" * levels),
    st.sampled_from([b"1e999", b"-1e999", b"NaN", b"9" * 5000, b'"\\ud800"', b"\xff\xfe", b"{}", b"null"]),
    JSON.map(lambda value: json.dumps(value).encode()),
)


def changed(whole: dict[str, Any], names: list[str] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """`whole` with some of its fields (of `names`) replaced by anything, or left out."""
    fields = st.sampled_from(names or sorted(whole))
    given = st.dictionaries(fields, JSON, max_size=3).map(lambda values: {**whole, **values})
    gone = fields.map(lambda name: {key: value for key, value in whole.items() if key != name})
    return st.one_of(given, gone)


def encoded(value: Any) -> bytes:
    """As JSON, with what Python's own parser takes beyond it."""
    return json.dumps(value).encode()
