"""Data sets that are known by name: where they are published, and what their answers are."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Published:
    """`source`: the file as its authors published it; `integers`: prompts with any other answer are left out."""

    source: str
    integers: bool = True


PUBLISHED: Final = {
    # 1.79 million rows of some 17,000 prompts (the paper's section 3.5).
    "dapo-math-17k": Published("hf://datasets/BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet"),
    # 30 problems, 32 rows each.
    "aime-2024": Published("hf://datasets/BytedTsinghua-SIA/AIME-2024/data/aime-2024.parquet"),
}
