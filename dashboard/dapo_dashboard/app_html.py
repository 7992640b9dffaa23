"""The HTML that loads Streamlit's application, with what browsers would otherwise look for after it has started: its
server's address and the scripts of the page."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import streamlit
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dapo_dashboard import browser_files

# All one level below the root of the application. Streamlit answers other paths itself, with its HTML as it is.
PATHS: Final = ("/", "/runs", "/run", "/compare", "/alerts", "/help")
_INDEX: Final = Path(streamlit.__file__).parent / "static" / "index.html"
# By itself, Streamlit looks for its server below the page's own path first, then waits for 100 ms and looks one level
# higher, and only then connects. `__streamlit` is where those who host it say what it would ask for. The cookie comes
# with the first answer: a connection without it is not logged in, so the first visit asks before it connects.
_SETTINGS: Final = """<script>
window.__streamlit = { BACKEND_BASE_URL: new URL(".", location.href).href };
if (document.cookie.includes("_streamlit_xsrf=")) {
  window.__streamlit.HOST_CONFIG = { allowedOrigins: [location.origin], useExternalAuthToken: false };
}
</script>"""
_CHARTS: Final = {"/run", "/compare"}


@lru_cache(maxsize=len(PATHS))
def html(path: str) -> str:
    """Streamlit's, with the settings before its first script. The browser loads the scripts of the page meanwhile:
    three rounds of requests that would begin when all else is drawn."""
    modules = browser_files.needed("live.js") + (browser_files.needed("grid.js") if path in _CHARTS else [])
    links = "".join(f'<link rel="modulepreload" href="./{browser_files.path_of(each)}">' for each in modules)
    clock = f'<script type="module">import {{ tick }} from "./{browser_files.path_of("clock.js")}"; tick();</script>'
    page = _INDEX.read_text(encoding="utf-8").replace("<head>", f"<head>{_SETTINGS}", 1)
    return page.replace("</head>", f"{links}{clock}</head>", 1)


async def _serve(path: str, _: Request) -> HTMLResponse:
    return HTMLResponse(html(path), headers={"cache-control": "no-cache"})


ROUTES: Final = [Route(path, partial(_serve, path)) for path in PATHS]
