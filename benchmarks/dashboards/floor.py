"""What Streamlit itself takes: pages that read nothing and have next to nothing on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servers.dashboard import dashboard

# Four tables, by which `pages` sees that there is a page.
_SCRIPT: Final = """import streamlit as st
st.html("<table><tr><td>1</td></tr></table>" * 4)
if "table" in st.query_params:
    st.dataframe({"number": [1]}, hide_index=True)
"""
_OPTIONS: Final = (
    "--server.headless",
    "true",
    "--browser.gatherUsageStats",
    "false",
    "--server.fileWatcherType",
    "none",
)


@contextmanager
def empty_pages(folder: Path) -> Iterator[dict[str, str]]:
    """URLs by what is there."""
    script = folder / "empty.py"
    script.write_text(_SCRIPT)
    with dashboard("", folder / "empty.log", None, *_OPTIONS, server=script) as address:
        yield {
            "an empty Streamlit page": address,
            "a Streamlit page with a table of one row": f"{address}/?table=1",
        }
