"""The folder that `dapo evaluate` and the process it starts pass things through."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dapo_trainer.evaluate.target import Checkpoint
from dapo_trainer.evaluation import Evaluated
from dapo_trainer.rewards.verdict import Verdict


@dataclass(frozen=True)
class WorkFolder:
    """`{home}/evaluations/{id}/attempt-1`."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat.json"

    @property
    def model(self) -> Path:
        """Where a checkpoint's model is put together."""
        return self.path / "model"

    @property
    def groups(self) -> Path:
        return self.path / "groups.json"

    @property
    def responses(self) -> Path:
        """Every response with its verdict, as `dapo_trainer.samples` writes them."""
        return self.path / "responses.parquet"

    def write_request(self, checkpoint: Checkpoint | None) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.request.write_text(json.dumps(None if checkpoint is None else asdict(checkpoint)))

    def read_request(self) -> Checkpoint | None:
        content = json.loads(self.request.read_text())
        return None if content is None else Checkpoint(**content)

    def read_groups(self) -> tuple[int | None, list[Evaluated]]:
        """The checkpoint's step (None for a plain model), and every judged prompt."""
        content = json.loads(self.groups.read_text())
        return content["step"], [
            Evaluated(**{**group, "verdicts": [Verdict(**verdict) for verdict in group["verdicts"]]})
            for group in content["groups"]
        ]
