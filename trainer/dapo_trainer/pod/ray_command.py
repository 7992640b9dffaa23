"""The command `ray`, whose daemons fork workers where there is a fork server."""

from ray.scripts.scripts import main

from dapo_trainer.process.fork_server import as_python

if __name__ == "__main__":
    with as_python():
        main()
