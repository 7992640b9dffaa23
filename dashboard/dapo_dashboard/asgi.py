"""The dashboard's server: Streamlit's own, with everything that pages use imported in advance, and with pages that
preload their scripts. `streamlit run` starts it."""

import gc
from importlib import import_module
from pathlib import Path
from typing import Final

import streamlit as st
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dapo_dashboard import preload

_SCRIPT: Final = Path(__file__).with_name("app.py")
# Loaded before the first viewer comes, not while that viewer waits.
_IMPORTED: Final = (
    "pandas",
    "pyarrow.parquet",
    "psycopg",
    "dapo_dashboard.pages.compare_views",
    "dapo_dashboard.pages.run_curves",
    "dapo_dashboard.pages.run_details",
    "dapo_dashboard.pages.run_evaluations",
    "dapo_dashboard.pages.run_samples",
)


class Preloading:
    """Serves the HTML of the pages, with links to their scripts; all else is Streamlit's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pages = preload.pages(Path(st.__file__).parent / "static")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._page(scope) or self._app)(scope, receive, send)

    def _page(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["method"] != "GET":
            return None
        html = self._pages.get(scope["path"].strip("/"))
        return None if html is None else Response(html, media_type="text/html", headers={"Cache-Control": "no-cache"})


for _name in _IMPORTED:
    import_module(_name)
# Streamlit collects garbage after each run of a page and blocks all viewers meanwhile: a tenth of a second for objects
# that are loaded by now and will never be garbage.
gc.freeze()
app = st.App(_SCRIPT, middleware=[Middleware(Preloading)])
