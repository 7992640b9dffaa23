"""Colors that people with any color vision tell apart, on white and on near-black."""

from typing import Final

# Outcomes and marks have a color of their own in both themes; all other curves take the theme's, in order
# (.streamlit/config.toml).
WRONG: Final = "#D9662B"
MIXED: Final = "#2F8FCC"
RIGHT: Final = "#7CCB5B"
LOST: Final = "#9AA0A6"
RESTART: Final = "#E08A00"
ALERT: Final = "#D1495B"
CHECKPOINT: Final = "#1FA187"
SUSPEND: Final = "#8A7FB8"
NOT_FINITE: Final = "rgba(209,73,91,0.22)"
# Series without end, such as the runs of a comparison: hues in turn, and a dash of its own for each round.
RUNS: Final = (
    "#2F8FCC",
    "#E08A00",
    "#AE1A3E",
    "#29C27D",
    "#9125A0",
    "#C0A6CC",
    "#066357",
    "#DC4EA9",
    "#817901",
    "#1953CF",
)
DASHES: Final = ("solid", "dashed", "dotted")


def run_color(index: int) -> tuple[str, str]:
    """Color and dash of the run of that number."""
    return RUNS[index % len(RUNS)], DASHES[index // len(RUNS) % len(DASHES)]
