"""Colors that appear together can be distinguished with any color vision.

Vision is simulated after Machado, Oliveira and Fernandes (2009), severity 1; distances are of OKLab (Ottosson 2020),
where 0.02 is about the least difference that is seen side by side.
"""

import tomllib
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dapo_dashboard.charts import palette

THEMES = tomllib.loads((Path(palette.__file__).parents[1] / ".streamlit" / "config.toml").read_text())["theme"]
VISION = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(color: str, vision: str) -> np.ndarray:
    """The color `#RRGGBB` in OKLab, as someone of this vision sees it."""
    shares = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    found: np.ndarray = TO_LAB @ np.cbrt(TO_CONES @ np.clip(VISION[vision] @ linear, 0, 1))
    return found


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "colors",
    [
        pytest.param(THEMES["light"]["chartCategoricalColors"], id="curves by day"),
        pytest.param(THEMES["dark"]["chartCategoricalColors"], id="curves at night"),
        pytest.param([palette.WRONG, palette.MIXED, palette.RIGHT, palette.LOST], id="outcomes"),
        pytest.param([palette.RESTART, palette.ALERT, palette.CHECKPOINT, palette.SUSPEND], id="marks"),
        pytest.param(palette.RUNS, id="runs"),
    ],
)
def test_colors_that_stand_together_are_told_apart(colors: Sequence[str], vision: str) -> None:
    distances = {
        pair: float(np.linalg.norm(seen(pair[0], vision) - seen(pair[1], vision))) for pair in combinations(colors, 2)
    }
    assert not {pair: round(distance, 3) for pair, distance in distances.items() if distance < 0.06}
