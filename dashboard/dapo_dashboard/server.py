"""The dashboard's server: Streamlit's own, whose pages name the scripts that they need. `streamlit run` starts it."""

import gc
from importlib import import_module
from pathlib import Path
from typing import Final

import streamlit as st
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dapo_dashboard import assets, preload

_SCRIPT: Final = Path(__file__).with_name("app.py")
# What pages use, loaded before the first viewer comes and not while that one waits.
_USED: Final = (
    "pandas",
    "pyarrow.parquet",
    "psycopg",
    "dapo_dashboard.pages.checkpoints",
    "dapo_dashboard.pages.compare_tables",
    "dapo_dashboard.pages.configuration",
    "dapo_dashboard.pages.curve_grid",
    "dapo_dashboard.pages.evaluations",
    "dapo_dashboard.pages.samples",
    "dapo_dashboard.pages.status_strip",
    "dapo_dashboard.pages.timeline",
)


class Preloading:
    """Answers for the pages' own HTML and the files that they need; everything else is the server's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        static = Path(st.__file__).parent / "static"
        self._pages = preload.pages(static)
        self._assets = assets.read(static, preload.files(static))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._answer(scope) or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["method"] != "GET":
            return None
        path = scope["path"].strip("/")
        if html := self._pages.get(path):
            return Response(html, media_type="text/html", headers={"Cache-Control": "no-cache"})
        if asset := self._assets.get(path):
            accepted = Headers(scope=scope).get("accept-encoding", "")
            return Response(asset.body(accepted), headers=asset.headers(accepted))
        return None


for _name in _USED:
    import_module(_name)
# Streamlit collects garbage after each run of a page, and answers nobody meanwhile: a tenth of a second for all that is
# loaded by now and will never be garbage.
gc.freeze()
app = st.App(_SCRIPT, middleware=[Middleware(Preloading)])
