"""Figures for the docs as small PNG files that are sharp on dense screens too."""

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

# An 11 inch figure becomes 1,584 pixels wide; pages show it at about 900.
DOTS_PER_INCH = 144
COLORS = 128


def save(figure: Any, picture: Path) -> None:
    """Write a matplotlib figure; a PNG with a palette, which makes it a third of the size, another format as it is."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    if picture.suffix != ".png":
        figure.savefig(picture)
        return
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
    write_png(Image.open(drawn), picture)


def write_png(image: Image.Image, picture: Path, colors: int = COLORS, rounds: int = 0) -> None:
    """Write the image with a palette; of the most different colors, so that thin lines keep theirs. In some `rounds`
    these move to where many pixels are: areas keep the color that they have."""
    method = Image.Quantize.MAXCOVERAGE
    reduced = image.convert("RGB").quantize(colors, method, kmeans=rounds, dither=Image.Dither.NONE)
    reduced.save(picture, optimize=True)
