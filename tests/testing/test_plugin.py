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


def pytest_process(folder: Path, tests: str, *args: str, ini: str = "") -> tuple[int, str]:
    (folder / "test_mine.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p foxhunt_rt.testing.plugin\n" + ini)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FOXHUNT_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-s", "-v", "-p", "no:cacheprovider", *args]
    env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def pytest_run(folder: Path, *args: str, ini: str = "") -> str:
    code, out = pytest_process(folder, TESTS, *args, ini=ini)
    assert code == 0, out
    return out


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


GOLDEN_TESTS = """
import numpy as np

def test_increment(step_plan, runtime, golden):
    x = runtime.array(np.arange(9, dtype="f4"), "x")
    with step_plan.child("increment", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (32,), dict(x=x, value=VALUE, n=9))
    golden(step_plan.build(), steps=2)
"""


def test_golden_files_are_kept_beside_the_test(tmp_path: Path) -> None:
    def run(value: str, *args: str) -> tuple[int, str]:
        return pytest_process(tmp_path, GOLDEN_TESTS.replace("VALUE", value), "--foxhunt-driver=hostsim", *args)

    code, out = run("1.0")
    assert code == 1 and "run this test with --foxhunt-golden=record" in out
    assert run("1.0", "--foxhunt-golden=record")[0] == 0
    assert [p.name for p in (tmp_path / "golden").iterdir()] == ["test_mine-test_increment.npz"]
    assert run("1.0")[0] == 0
    code, out = run("1.25")
    assert code == 1
    assert "departs from test_mine-test_increment.npz (driver hostsim" in out
    assert "step 0, child increment: x[0]: 1 against 1.25" in out and "the ledger:" in out
