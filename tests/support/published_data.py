"""Rows as data sets are published, saved as files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from dapo_trainer.data.source_tables import SourceFile

Row = dict[str, Any]


def row(question: str = "1+1?", answer: Any = "2") -> Row:
    """A row as DAPO-Math-17k is published."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": question, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    }


def saved(path: Path, rows: Sequence[Row]) -> SourceFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=7)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return SourceFile(path.name, path)
