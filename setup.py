"""What pyproject.toml cannot say: a wheel carries uPlot, which is not committed."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "dashboard"))

from dapo_dashboard import uplot


class BuildWithUPlot(build_py):
    """Fetches uPlot by hash first. An editable installation does without: scripts/setup.sh fetches it."""

    def run(self) -> None:
        if not self.editable_mode:
            uplot.fetch()
        super().run()


# A build in an environment of its own installs npm there where the machine has none.
setup(
    cmdclass={"build_py": BuildWithUPlot},
    setup_requires=[] if uplot.is_there() or uplot.npm() else [uplot.NPM_WHEEL],
)
