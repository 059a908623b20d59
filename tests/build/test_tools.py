"""tools/resource_report.py and tools/dev.py: that what is wrong is seen, and that exit codes arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dev
import pytest
import resource_report

import build

from .conftest import ROOT

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'calm' for 'sm_90'
ptxas info    : Function properties for calm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'greedy' for 'sm_90'
ptxas info    : Function properties for greedy
    96 bytes stack frame, 88 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""


def test_ptxas_log_is_read() -> None:
    calm, greedy = resource_report.parse_log("image", PTXAS)
    assert (calm.kernel, calm.registers, calm.shared, calm.stack, calm.spills) == ("calm", 22, 128, 0, False)
    assert (greedy.registers, greedy.shared, greedy.stack) == (255, 0, 96)
    assert (greedy.spill_stores, greedy.spill_loads, greedy.spills) == (88, 92, True)
    assert resource_report.too_large([calm, greedy], {}) == []
    assert resource_report.too_large([calm], {calm.kernel: 65536 // (-(-calm.registers // 8) * 8) // 32 * 32}) == []
    assert resource_report.too_large([greedy], {greedy.kernel: 1024}) == [
        f"{greedy.kernel} ({greedy.registers} registers, 1024 threads)"
    ]
    assert "SPILLS" in resource_report.table([calm, greedy]).splitlines()[-1]


CALM = PTXAS.partition("ptxas info    : Compiling entry function 'greedy'")[0]


@pytest.mark.parametrize(("log", "code"), [(PTXAS, 1), (CALM, 0)])
def test_a_spill_fails_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: str, code: int
) -> None:
    (tmp_path / "logs" / "sm_90").mkdir(parents=True)
    (tmp_path / "logs" / "sm_90" / "image.txt").write_text(log)
    monkeypatch.setattr(resource_report, "ARCHS", ("90",))
    monkeypatch.setattr(resource_report, "FOLDER", tmp_path)
    monkeypatch.setattr(resource_report, "REPORT", tmp_path / "report.txt")
    monkeypatch.setattr(sys, "argv", ["resource_report.py"])
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "build", lambda *a, **k: None)
    monkeypatch.setattr(resource_report, "launched_blocks", dict)
    monkeypatch.setattr(build, "scan_kernels", lambda: {"calm": {"image": "image"}})
    assert resource_report.main() == code
    assert ("register spills in greedy" in capsys.readouterr().err) == (code == 1)


def test_a_failing_step_fails_the_test_command_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run(command: list[str | Path], **_: str) -> int:
        ran.append(" ".join(str(word) for word in command))
        return 3 if "mypy" in ran[-1] else 0

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev, "install", lambda *a, **k: None)
    monkeypatch.setattr(dev, "check_machine", lambda: None)
    monkeypatch.setattr(dev, "make_venv", lambda: None)
    monkeypatch.setattr(sys, "argv", ["dev.py", "test", "-k", "adam"])
    assert dev.main() == 3
    assert "pytest" in ran[-1]
    assert ran[-1].endswith("-k adam")
    assert capsys.readouterr().err.strip() == "error: failed: mypy"


def test_the_code_of_training_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(command: list[str | Path], **_: str) -> int:
        ran.append([str(word) for word in command[1:]])
        return 5 if command[1] == "train" else 0

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev, "install", lambda *a, **k: None)
    monkeypatch.setattr(dev, "make_venv", lambda: None)
    monkeypatch.setattr(sys, "argv", ["dev.py", "train", "--short", "--seed", "3"])
    assert dev.main() == 5
    assert ran == [["sample"], ["train", *dev.SHORT, "--seed", "3"]]


def test_dev_uses_the_standard_library_alone() -> None:
    """It runs before anything is installed."""
    code = (
        "import sys; sys.path.insert(0, 'tools'); import dev, toolkit; "
        "print([m for m in sys.modules if m.partition('.')[0] in ('numpy', 'cffi', 'setuptools', 'pip', 'foxhunt_rt')])"
    )
    command = [sys.executable, "-S", "-E", "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"
