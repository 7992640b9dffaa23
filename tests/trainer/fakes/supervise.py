"""`dapo run` of the fake trainer: `supervise.py HOME RUN_ID [plain|quiet|live]`, the job being HOME/RUN_ID.yaml.

A run that exists is resumed, as `dapo resume` does. HOME may be "-": then DAPO_HOME and DAPO_METADATA_URL say where.
"""

import sys
from pathlib import Path

from rich.console import Console

from dapo_core.cli.main import print_error
from dapo_core.errors import DapoError
from dapo_core.jobspec import load_job
from dapo_core.run.home import Home
from dapo_trainer.local.run_session import Show, work_on
from dapo_trainer.process.run_folder import RunFolder

FAKE = Path(__file__).with_name("fake_trainer.py")


def main(home: str, run_id: str, mode: str = "plain") -> int:
    place = Home.find(None if home == "-" else Path(home))
    run = RunFolder(place.path / run_id)
    job = run.read_job() if run.job_file.exists() else load_job(place.path / f"{run_id}.yaml")
    console = Console() if mode == "live" else Console(width=200)
    show = Show(console, plain=mode == "plain", quiet=mode == "quiet")
    try:
        return work_on(place, run, job, show, command=(sys.executable, str(FAKE)))
    except DapoError as error:
        print_error(error)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
