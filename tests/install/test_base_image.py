"""The base of all images: named by digest, in the form that both builders take."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def test_the_base_image_is_named_by_digest() -> None:
    lines = (ROOT / "scripts" / "images" / "bases.txt").read_text().splitlines()
    (base,) = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", base)


@pytest.mark.parametrize(
    ("given", "pulled"),
    [
        pytest.param(f"python:3.11-slim@{DIGEST}", f"python@{DIGEST}", id="tag and digest"),
        pytest.param(f"docker://mirror:5000/python:3.11@{DIGEST}", f"docker://mirror:5000/python@{DIGEST}", id="port"),
        pytest.param(f"mirror:5000/python@{DIGEST}", f"mirror:5000/python@{DIGEST}", id="digest alone"),
        pytest.param("localhost/base:bookworm-1", "localhost/base:bookworm-1", id="tag alone"),
    ],
)
def test_buildah_takes_no_tag_beside_a_digest(given: str, pulled: str) -> None:
    script = 'source scripts/images/base.sh; by_digest "$1"'
    printed = subprocess.run(
        ["bash", "-c", script, "bash", given], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == pulled
