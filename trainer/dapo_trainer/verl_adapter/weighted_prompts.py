"""Training files by weight: a dataset in which the rows of a file occur as often as its weight says.

verl shuffles the numbers of its rows by the seed, again in each epoch, and saves its place in them with a checkpoint.
"""

from pathlib import Path
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from dapo_trainer.data.prompt_files import epoch, parquet_rows
from dapo_trainer.verl_adapter.session import current


class WeightedPrompts(RLHFDataset):
    """Loaded by verl as `data.custom_cls`, for training and validation files; constructor arguments are verl's.

    A validation set is its rows, each once.
    """

    def __init__(self, data_files: Any, *arguments: Any, config: Any, max_samples: int = -1, **more: Any) -> None:
        super().__init__(data_files, *arguments, config=config, max_samples=max_samples, **more)
        self._rows: list[int] | None = None
        if max_samples < 0 and list(data_files) == list(config.train_files):
            settings = current().settings
            rows = [parquet_rows(Path(file)) for file in self.data_files]
            self._rows = epoch(rows, settings["train_weights"], settings["seed"])

    def __len__(self) -> int:
        return super().__len__() if self._rows is None else len(self._rows)

    def __getitem__(self, item: int) -> Any:
        return super().__getitem__(item if self._rows is None else self._rows[item])
