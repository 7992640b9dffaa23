"""The HTML of each page, with links to the scripts that the page is going to need. Pure, but for reading Streamlit's
files.

Streamlit's page loads the script of an element only when the server has sent the element: the browser is idle while the
server works, and then loads and compiles megabytes. With the links it does so meanwhile.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_COMMON: Final = ("Html", "Multiselect", "Checkbox", "WidgetLabel")
_CURVES: Final = (*_COMMON, "ButtonGroup", "Slider", "NumberInput", "EChartsChart", "BidiComponent")
_TABLE: Final = (*_COMMON, "DataFrame")
SCRIPTS: Final[Mapping[str, Sequence[str]]] = {
    "": (*_TABLE, "TextInput", "Selectbox"),
    "runs": (*_TABLE, "TextInput", "Selectbox"),
    "run": _CURVES,
    "compare": (*_CURVES, "Selectbox"),
    "alerts": _TABLE,
    "help": ("Html", "Selectbox", "EChartsChart"),
}
"""By the page's path: names of Streamlit's scripts, as in its manifest."""
_ENTRY: Final = "index.html"
_ICONS: Final = "static/media/MaterialSymbols-Rounded.*.woff2"
# Streamlit's page takes the last part of its URL for a folder of the server, sends a request there in vain, and waits.
_SERVER: Final = '<script>window.__streamlit = {BACKEND_BASE_URL: new URL("./", location.href).href};</script>'
Manifest = Mapping[str, Mapping[str, Any]]


def pages(static: Path) -> dict[str, bytes]:
    """The HTML of each page by its path, made of Streamlit's static files."""
    plain = (static / _ENTRY).read_text(encoding="utf-8")
    manifest = _manifest(static)
    fonts = [str(path.relative_to(static)) for path in static.glob(_ICONS)]
    return {path: with_preloads(plain, scripts(manifest, names), fonts).encode() for path, names in SCRIPTS.items()}


def scripts(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """The files of these scripts and of all that they import, except those that every page loads anyway."""
    wanted = _closure(manifest, _keys(manifest, names))
    loaded = set(_closure(manifest, [_ENTRY] if _ENTRY in manifest else []))
    return [manifest[key]["file"] for key in wanted if key not in loaded]


def with_preloads(html: str, files: Iterable[str], fonts: Iterable[str] = ()) -> str:
    """The page with a link for each script and font, at the end of its head."""
    links = "".join(f'<link rel="modulepreload" crossorigin href="./{file}">' for file in files)
    links += "".join(f'<link rel="preload" as="font" crossorigin href="./{font}">' for font in fonts)
    return html.replace("</head>", f"{_SERVER}{links}</head>", 1)


def _manifest(static: Path) -> Manifest:
    manifest: Manifest = json.loads((static / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def _keys(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """The keys of those that this Streamlit has; a page without its preloads is slower, but works."""
    by_name = {entry["name"]: key for key, entry in manifest.items() if entry.get("name")}
    return [by_name[name] for name in names if name in by_name]


def _closure(manifest: Manifest, keys: Iterable[str]) -> list[str]:
    closed: dict[str, None] = {}
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key in manifest and key not in closed:
            closed[key] = None
            waiting += manifest[key].get("imports", ())
    return list(closed)
