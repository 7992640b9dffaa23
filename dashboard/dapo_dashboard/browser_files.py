"""The scripts that draw charts in the browser, and where the server has them: under a path that names their content, so
that browsers keep them until it changes."""

import hashlib
import json
import re
from functools import lru_cache
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dapo_core.errors import DapoError
from dapo_dashboard import uplot

PATH: Final = "chart-scripts"
_FOLDER: Final = uplot.FOLDER.parent
_YEAR: Final = 365 * 24 * 3600
_IMPORT: Final = re.compile(r'^import .* from "\./(.+)";$', re.MULTILINE)


class MissingScriptError(DapoError):
    """What draws the charts is not installed."""

    user_mistake = True


@lru_cache(maxsize=1)
def scripts() -> dict[str, bytes]:
    """Each module by its name, uPlot among them as a module. Raises MissingScriptError."""
    if not uplot.is_there():
        raise MissingScriptError(
            f"uPlot {uplot.VERSION}, which draws the charts, is not installed. Run `python -m dapo_dashboard.uplot`."
        )
    own = {path.name: path.read_bytes() for path in sorted(_FOLDER.glob("*.js"))}
    library = (uplot.FOLDER / "uPlot.iife.min.js").read_text(encoding="utf-8")
    style = json.dumps((uplot.FOLDER / "uPlot.min.css").read_text(encoding="utf-8"))
    module = f"{library}\nexport default uPlot;\nexport const UPLOT_STYLE = {style};\n"
    return own | {"uPlot.js": module.encode()}


@lru_cache(maxsize=1)
def version() -> str:
    """Different for different scripts. Raises MissingScriptError."""
    whole = hashlib.sha256()
    for name, content in scripts().items():
        whole.update(name.encode() + b"\0" + content)
    return whole.hexdigest()[:16]


def path_of(module: str) -> str:
    """Where the server has a module, relative to the root of the application."""
    return f"{PATH}/{version()}/{module}"


def needed(module: str) -> list[str]:
    """The module and all that it imports. A browser knows of each only once it has read what imports it."""
    found = [module]
    for each in found:
        found += [name for name in _IMPORT.findall(scripts()[each].decode()) if name not in found]
    return found


def loader(module: str, function: str) -> str:
    """The script of a Streamlit component that calls `function` of a module."""
    return (
        "export default async (component) => {\n"
        f'  const scripts = await import(new URL("{path_of(module)}", document.baseURI).href);\n'
        f"  return scripts.{function}(component);\n"
        "};\n"
    )


async def _serve(request: Request) -> Response:
    content = scripts().get(request.path_params["name"])
    if content is None or request.path_params["version"] != version():
        return Response(status_code=404)
    headers = {"cache-control": f"public, max-age={_YEAR}, immutable"}
    return Response(content, media_type="text/javascript", headers=headers)


ROUTES: Final = [Route(f"/{PATH}/{{version}}/{{name}}", _serve)]
