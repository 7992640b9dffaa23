"""Pages without a browser: the script's own run over a store of a test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from dashboard_data import Store
from patience import patient
from servers.dashboard import SCRIPT
from streamlit.testing.v1 import AppTest


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    filled = Store(tmp_path)
    for name, value in {
        "DAPO_METADATA_URL": filled.url,
        "DAPO_STORE_URL": (tmp_path / "objects").as_uri(),
        "DAPO_ACKNOWLEDGE_URL": "",
        "DAPO_DASHBOARD_ACCESS": "",
    }.items():
        monkeypatch.setenv(name, value)
    st.cache_resource.clear()
    st.cache_data.clear()
    yield filled
    st.cache_resource.clear()


def shown(page: str, **query: str | list[str]) -> AppTest:
    """The page after its script has run."""
    test = AppTest.from_file(str(SCRIPT), default_timeout=patient(60))
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    test.switch_page(f"page_{page}.py")
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, test.exception
    return test


def texts(test: AppTest) -> str:
    """All that the page says in words."""
    kinds = (test.markdown, test.caption, test.info, test.warning, test.error, test.success, test.code, test.title)
    html = [each.proto.body for each in test.get("html")]
    charts = [chart["title"] for drawn in charts_of(test) for chart in drawn]
    return "\n".join([*(str(each.value) for kind in kinds for each in kind), *html, *charts])


def charts_of(test: AppTest) -> list[list[dict[str, Any]]]:
    """The charts that the page sends, of each component that draws some."""
    return [page["charts"] for page in grids_of(test)]


def grids_of(test: AppTest) -> list[dict[str, Any]]:
    """All that the page sends to each component that draws charts."""
    found = [json.loads(each.proto.bytes) for each in test.get("bidi_component") if each.proto.bytes]
    return [page for page in found if page["charts"]]
