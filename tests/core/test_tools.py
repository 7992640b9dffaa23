"""tests/kit/tools.sh: from the cache when the sum is right, else built, else a sentence."""

import hashlib
import lzma
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import patient

SCRIPT = Path(__file__).parents[2] / "tests" / "kit" / "tools.sh"
CACHED = b"#!/bin/sh\necho from the cache\n"
# It has the module that was reviewed.
REVIEWED = next(line.strip() for line in SCRIPT.read_text().splitlines() if line.strip().startswith("[helm]=h1:"))
GO = f"""#!/bin/sh
if [ "$1" = mod ]; then printf '\\t"Sum": "%s"\\n' {REVIEWED.partition("=")[2]}; exit; fi
echo "$@" >>"$(dirname "$0")/calls"
sleep 0.2
mkdir -p "$GOBIN" && printf '#!/bin/sh\\necho built\\n' >"$GOBIN/helm" && chmod +x "$GOBIN/helm"
"""


class Repository:
    """A repository with nothing but the script, a cache beside it, and perhaps a Go."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache, self.path = folder / "main", folder / "shared" / "bin", folder / "path"
        for made in (self.root / "tests" / "kit", self.cache, self.path):
            made.mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "tests" / "kit")

    def fill_cache(self, sum_of: bytes | None = None) -> None:
        packed = lzma.compress(CACHED)
        (self.cache / "helm.xz").write_bytes(packed)
        digest = hashlib.sha256(sum_of or packed).hexdigest()
        (self.cache / "SHA256SUMS").write_text(f"{digest}  helm.xz\n")

    def add_go(self) -> None:
        (self.path / "go").write_text(GO)
        (self.path / "go").chmod(0o755)

    def tool(self, *names: str) -> subprocess.CompletedProcess[str]:
        # Without the machine's own Go, wherever it is.
        others = [each for each in os.environ["PATH"].split(":") if each and not (Path(each) / "go").exists()]
        environment = {"PATH": ":".join([str(self.path), *others]), "HOME": str(self.root)}
        command = [str(self.root / "tests" / "kit" / "tools.sh"), *names]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60))

    def says(self, name: str) -> str:
        found = self.tool(name)
        assert found.returncode == 0, found.stderr
        return subprocess.check_output([found.stdout.strip()], text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_tool_comes_from_the_cache(repository: Repository) -> None:
    repository.fill_cache()
    assert repository.says("helm") == "from the cache"
    shutil.rmtree(repository.cache)
    assert repository.says("helm") == "from the cache", "it is there already"


def test_a_wrong_sum_is_as_good_as_no_cache(repository: Repository) -> None:
    repository.fill_cache(sum_of=b"another")
    repository.add_go()
    assert repository.says("helm") == "built"


def test_parallel_calls_build_once(repository: Repository) -> None:
    repository.add_go()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(repository.says, ["helm"] * 4)) == {"built"}
    assert len((repository.path / "calls").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        pytest.param(["helm"], "not found: install Go", id="neither cached nor built"),
        pytest.param(["hlem"], "'hlem' is not one of", id="a slip"),
        pytest.param([], "usage: tools.sh NAME...", id="nothing named"),
    ],
)
def test_what_is_missing_is_told(names: list[str], sentence: str, repository: Repository) -> None:
    refused = repository.tool(*names)
    assert refused.returncode == 1 and sentence in refused.stderr and refused.stdout == ""
