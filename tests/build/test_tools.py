"""tools/resource_report.py and tools/dev.py: that what is wrong is seen, and that exit codes arrive."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
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


@pytest.mark.parametrize(("codes", "code", "failed"), [
    ({}, 0, ""), ({"mypy": 3}, 3, "mypy"), ({"ruff": 1, "mypy": 3}, 3, "ruff check, ruff format --check, mypy"),
    ({"mypy": 3, "pytest": 4}, 4, "mypy, pytest"),
])  # fmt: skip
def test_a_failing_step_fails_the_test_command_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], codes: dict[str, int], code: int, failed: str
) -> None:
    ran = []

    def run(command: list[str | Path]) -> int:
        words = [Path(str(word)).name for word in command]
        ran.append(words)
        return next((codes[word] for word in words if word in codes), 0)

    def run_quietly(command: list[str | Path]) -> tuple[int, str, float]:
        time.sleep(0.05 if "mypy" in str(command) else 0.0)  # what ends later is shown in its place all the same
        return run(command), f"<{Path(str(command[0])).name}>\n", 0.0

    monkeypatch.setattr(dev, "run", run)
    monkeypatch.setattr(dev, "run_quietly", run_quietly)
    monkeypatch.setattr(dev, "install", lambda *a, **k: None)
    monkeypatch.setattr(dev, "check_machine", lambda: None)
    monkeypatch.setattr(dev, "make_venv", lambda: None)
    monkeypatch.setattr(sys, "argv", ["dev.py", "test", "-k", "adam"])
    assert dev.main() == code
    assert ran[-1][1:3] == ["-m", "pytest"] and ran[-1][-2:] == ["-k", "adam"]
    assert len(ran) == 7
    shown = capsys.readouterr()
    assert shown.err.strip() == (f"error: failed: {failed}" if failed else "")
    written = [line for line in shown.out.splitlines() if line.startswith("<")]
    assert written == ["<ruff>", "<ruff>", "<mypy>", "<lint-imports>", "<clang-format>", "<python>"]
    assert ("mypy: failed with exit code 3" in shown.out) == ("mypy" in codes)


def test_a_quiet_command_shows_what_it_wrote_and_its_code() -> None:
    script = "import sys; print('one', flush=True); print('two', file=sys.stderr); sys.exit(7)"
    code, text, seconds = dev.run_quietly([sys.executable, "-c", script])
    assert (code, text) == (7, "one\ntwo\n") and 0.0 < seconds < 60.0


def test_the_build_begun_early_is_waited_for_and_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "build.py").write_text(
        "import time; print('noise', flush=True); time.sleep(0.3); open('built', 'w'); raise SystemExit('a failure')"
    )
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    with contextlib.suppress(dev.Failure), dev.native_build_begun():
        assert not (tmp_path / "built").exists()
        raise dev.Failure("of pip")
    assert (tmp_path / "built").exists()
    assert capfd.readouterr() == ("", "")


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
