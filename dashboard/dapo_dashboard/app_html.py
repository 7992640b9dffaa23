"""The HTML that loads Streamlit's application, with its server's address, which browsers would otherwise look for."""

from functools import lru_cache
from pathlib import Path
from typing import Final

import streamlit
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

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


@lru_cache(maxsize=1)
def html() -> str:
    """Streamlit's, with the settings before its first script."""
    return _INDEX.read_text(encoding="utf-8").replace("<head>", f"<head>{_SETTINGS}", 1)


async def _serve(_: Request) -> HTMLResponse:
    return HTMLResponse(html(), headers={"cache-control": "no-cache"})


ROUTES: Final = [Route(path, _serve) for path in PATHS]
