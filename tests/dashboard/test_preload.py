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
    head, tail = (STATIC / "index.html").read_text().split("</head>")
    for path, html in preload.pages(STATIC).items():
        text = html.decode()
        assert text.startswith(head) and text.endswith(f"</head>{tail}"), path
        links = re.findall(r'href="\./([^"]+)"', text[len(head) : -len(tail)])
        assert "BACKEND_BASE_URL" in text and len(links) > 20 and all((STATIC / link).is_file() for link in links), path
