"""Create the demo's model and data once: `python -m dapo_trainer.demo.prepare FOLDER [--seed N] [--store URL]`.

With a store, they are copied there as well, for pods to train on; what already exists is not created again.
"""

import argparse
import json
from pathlib import Path
from random import Random

from dapo_core.local_files import write_atomically
from dapo_core.objectstore import ObjectStore, open_store
from dapo_trainer.demo.task import problems, question

TRAIN_PROMPTS, VALIDATION_PROMPTS = 4096, 64
DONE = "made.json"  # written last: without it, the folder is incomplete and created again


def rows(name: str, count: int, random: Random, without: set[tuple[int, int]]) -> list[dict[str, object]]:
    """Prompts in verl's chat schema, without the pairs in `without`: validation prompts are never trained on."""
    pairs = (pair for pair in problems(random) if pair not in without)
    return [
        {
            "data_source": name,
            "prompt": [{"role": "user", "content": question(a, b)}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index},
        }
        for index, (a, b) in zip(range(count), pairs, strict=False)
    ]


def prepare(folder: Path, seed: int) -> None:
    """Create data and a warm-started model in `folder`. It is complete when it holds `DONE`."""
    import pyarrow
    from pyarrow import parquet

    from dapo_trainer.demo.warm_start import tokenizer, warm_started

    folder.mkdir(parents=True, exist_ok=True)
    # The validation prompts do not depend on the seed, so that curves of several seeds can be compared.
    held_out = [pair for pair, _ in zip(problems(Random(20250318)), range(VALIDATION_PROMPTS), strict=False)]
    validation = rows("arithmetic", VALIDATION_PROMPTS, Random(20250318), set())
    training = rows("arithmetic", TRAIN_PROMPTS, Random(seed), set(held_out))
    parquet.write_table(pyarrow.Table.from_pylist(validation), folder / "validation.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(training), folder / "train.parquet")
    warm_started(seed).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    write_atomically(folder / DONE, json.dumps({"seed": seed}))


def copy(folder: Path, store: ObjectStore) -> None:
    """Copy the folder's files to a store, `DONE` last. Raises StoreError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.name == DONE):
        store.put_file(path.relative_to(folder).as_posix(), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="any but 0 trains a model for two minutes (default: 0)")
    parser.add_argument("--store", help="s3://bucket/prefix or file:///folder to copy them to")
    arguments = parser.parse_args()
    store = open_store(arguments.store) if arguments.store else None
    if store is not None and store.exists(DONE):
        print(f"The model and its data are already in {store.url}.")
        return
    if not (arguments.folder / DONE).exists():
        print(f"Creating a small model and its data in {arguments.folder}, once.")
        prepare(arguments.folder, arguments.seed)
    if store is not None:
        copy(arguments.folder, store)


if __name__ == "__main__":
    main()
