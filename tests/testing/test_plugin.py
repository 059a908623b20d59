"""The plugin in a project of somebody else, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os
import pytest

@pytest.mark.gpu
def test_on_a_gpu(): pass

@pytest.mark.hostsim
def test_on_hostsim(step_plan, runtime):
    x = runtime.zeros(8, "f4", "x")
    with step_plan.child("c", reads=[], writes=[x]) as c:
        c.memset(x, 1.0)
    built.append(step_plan.build())
    built[0].launch()
    assert x.to_numpy().all() and runtime.driver_kind == "hostsim"
    assert step_plan.name == "test_on_hostsim"

built = []

def test_afterwards():
    assert not built or built[0]._closed

def test_environment():
    print("driver", os.environ.get("FOXHUNT_DRIVER"), os.environ.get("FOXHUNT_HOSTSIM"))
"""


def pytest_run(folder: Path, *args: str, ini: str = "") -> str:
    (folder / "test_mine.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p foxhunt_rt.testing.plugin\n" + ini)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FOXHUNT_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-s", "-v", "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        command, cwd=folder, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["option", "configuration"])
def test_a_chosen_driver_selects(tmp_path: Path, how: str) -> None:
    args, ini = (["--foxhunt-driver=hostsim"], "") if how == "option" else ([], "foxhunt_driver = hostsim\n")
    out = pytest_run(tmp_path, *args, ini=ini)
    assert "foxhunt-rt driver: hostsim (deferred=1,redzones=1,poison=1)" in out
    assert "3 passed, 1 deselected" in out
    assert "driver hostsim deferred=1,redzones=1,poison=1" in out


def test_without_a_choice_it_stays_out_of_the_way(tmp_path: Path) -> None:
    """A project whose own tests are marked gpu does not lose them."""
    out = pytest_run(tmp_path, "-k", "not on_hostsim")
    assert "foxhunt-rt driver" not in out and "driver None None" in out
    assert "3 passed, 1 deselected" in out and "test_on_a_gpu" in out
