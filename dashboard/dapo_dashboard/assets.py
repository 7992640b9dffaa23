"""What the pages need of Streamlit's files, kept in memory: a first visit asks for a hundred of them at once.

Streamlit reads each anew, in pieces, and sends it as it is. Here a file is read once, and compressed once for whoever
comes over a network. Their names have their contents' hash in them, so a browser never asks for one twice."""

import gzip
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOREVER: Final = "public, immutable, max-age=31536000"
_COMPRESSED_ALREADY: Final = {".woff2", ".png", ".gif"}
# Beyond this, gzip takes longer and saves little.
_LEVEL: Final = 5


@dataclass(frozen=True)
class Asset:
    """`compressed` is the same by gzip; None where that would save nothing."""

    content: bytes
    compressed: bytes | None
    media_type: str

    def body(self, accepted: str) -> bytes:
        """For a browser that accepts these encodings."""
        return self.compressed if self.compressed is not None and "gzip" in accepted else self.content

    def headers(self, accepted: str) -> Mapping[str, str]:
        """Those of `body`."""
        common = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding", "Content-Type": self.media_type}
        return common if self.body(accepted) is self.content else {**common, "Content-Encoding": "gzip"}


def read(static: Path, names: Iterable[str]) -> dict[str, Asset]:
    """By name, those of the files that there are."""
    return {name: _asset(static / name) for name in names if (static / name).is_file()}


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    compressed = None if path.suffix in _COMPRESSED_ALREADY else gzip.compress(content, _LEVEL, mtime=0)
    return Asset(content, compressed, kind)
