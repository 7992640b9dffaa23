"""Scripts that a page names in its HTML."""

import json
import re
from pathlib import Path

import streamlit

from dapo_dashboard import preload

STATIC = Path(streamlit.__file__).parent / "static"
MANIFEST = {
    "index.html": {"file": "js/index.js", "imports": ["_react.js"]},
    "_react.js": {"file": "js/react.js"},
    "Chart.tsx": {"file": "js/chart.js", "name": "Chart", "imports": ["_react.js", "_arrow.js"]},
    "_arrow.js": {"file": "js/arrow.js", "imports": ["Chart.tsx"]},
}


def test_a_page_names_what_its_elements_import_and_not_what_is_loaded_anyway() -> None:
    assert preload.scripts(MANIFEST, ["Chart", "Unknown"]) == ["js/chart.js", "js/arrow.js"]


def test_every_name_is_one_of_streamlits() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    known = {entry.get("name") for entry in manifest.values()}
    assert not {name for names in preload.SCRIPTS.values() for name in names} - known


def test_a_page_is_streamlits_with_links_to_files_that_are_there() -> None:
    for path, html in preload.pages(STATIC).items():
        links = re.findall(rb'modulepreload" crossorigin href="\./([^"]+)"', html)
        assert len(links) > 50 and all((STATIC / link.decode()).is_file() for link in links), path
        assert html.replace(b"".join(_link(link) for link in links[-len(_new(html)) :]), b"") == _plain()


def _link(file: bytes) -> bytes:
    return b'<link rel="modulepreload" crossorigin href="./%b">' % file


def _new(html: bytes) -> list[bytes]:
    """What was put at the end of the head."""
    return re.findall(rb"<link[^>]*>", html[len(_plain().split(b"</head>")[0]) : html.index(b"</head>")])


def _plain() -> bytes:
    return (STATIC / "index.html").read_bytes()
