"""The examples of interoperation run, and say what they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(name: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, f"examples/{name}"], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
                          capture_output=True, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_own_kernels(driver: str) -> None:
    if shutil.which("g++" if driver == "hostsim" else "nvcc") is None:
        pytest.skip("no compiler for the example's kernels")
    text = run("own_kernels.py")
    assert "bitwise equal" in text and "8 per launch" in text


@pytest.mark.hostsim
def test_jax_buffers() -> None:
    pytest.importorskip("jax")
    text = run("jax_buffers.py")
    assert "its owner gave out read-only" in text
