"""The tests of the scripts that run in the browser, in the Node that Playwright brings."""

import subprocess
from pathlib import Path

import playwright
import pytest
from patience import patient

NODE = Path(playwright.__file__).parent / "driver" / "node"
TESTS = sorted((Path(__file__).parent / "browser").glob("*.test.mjs"))


@pytest.mark.parametrize("script", TESTS, ids=lambda path: path.stem)
def test_in_node(script: Path) -> None:
    ran = subprocess.run(
        [NODE, "--test", "--test-reporter=tap", script], capture_output=True, text=True, timeout=patient(60)
    )
    assert ran.returncode == 0 and "# pass 0" not in ran.stdout, ran.stdout + ran.stderr
