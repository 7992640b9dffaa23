"""The dashboard's server: Streamlit's own, with everything that pages use imported in advance.

Run it with `streamlit run`."""

import gc
from importlib import import_module
from pathlib import Path
from typing import Final

import streamlit as st
from starlette.middleware import Middleware

from dapo_dashboard import app_html, browser_files, context, live_updates
from dapo_dashboard.frame_headers import FrameHeaders
from dapo_dashboard.reads import parquet_rows

_SCRIPT: Final = Path(__file__).parent / "pages" / "app.py"
# Imported before the first viewer comes, not while that viewer waits.
_IMPORTED: Final = (
    "pandas",
    "pyarrow.parquet",
    "psycopg",
    "dapo_dashboard.pages.compare_views",
    "dapo_dashboard.pages.grouped_runs",
    "dapo_dashboard.pages.run_curves",
    "dapo_dashboard.pages.run_details",
    "dapo_dashboard.pages.run_evaluations",
    "dapo_dashboard.pages.run_fleet",
    "dapo_dashboard.pages.run_prompts",
    "dapo_dashboard.pages.run_samples",
    "dapo_dashboard.pages.run_steps",
)

for _name in _IMPORTED:
    import_module(_name)
# All viewers wait while Python looks for garbage: a tenth of a second for objects that are loaded by now and will never
# be any.
gc.freeze()
browser_files.scripts()  # a server without them says so before its first viewer comes
parquet_rows.UNPACKER.start()
_LIVE: Final = live_updates.route(lambda: context.settings().refresh_seconds, context.is_down)
app = st.App(_SCRIPT, routes=[*app_html.ROUTES, *browser_files.ROUTES, _LIVE], middleware=[Middleware(FrameHeaders)])
