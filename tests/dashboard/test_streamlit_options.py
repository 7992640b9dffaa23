"""What the dashboard sets of Streamlit, whose releases rename and remove options: of one that it does not know, it only
warns."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from streamlit import config

import dapo_dashboard

FILE: Final = Path(dapo_dashboard.__file__).parent / ".streamlit" / "config.toml"


def _options(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _options(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


OPTIONS: Final = dict(_options(tomllib.loads(FILE.read_text())))


@pytest.mark.parametrize("name", OPTIONS)
def test_streamlit_knows_it(name: str) -> None:
    assert type(config.get_option(name)) in (type(OPTIONS[name]), type(None))


def test_no_viewer_waits_for_garbage_to_be_collected() -> None:
    """It takes longer than most pages, and nobody else is served meanwhile."""
    assert OPTIONS["runner.postScriptGC"] is False
