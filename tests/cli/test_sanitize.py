"""`foxhunt-rt sanitize`: reports of compute-sanitizer are read and mapped; on hostsim a planted fault is found and named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from foxhunt_rt.cli.sanitize import Report, locate, parse_hostsim, parse_sanitizer

from .conftest import Cli

#: What compute-sanitizer 2025.3.1 printed on an H200 for tools/planted_faults.py (driver 580.159, CUDA 13.0). Of initcheck's 100
#: reports the first three are kept, of synccheck's 32 the first two. It gives offsets, since our cubins hold no
#: line information.
REPORTS = Path(__file__).with_name("sanitizer_reports")
GRADIENT7, FRESH = 0x7FE420A01200, 0x7F39D8A00200  # as they stand in those reports

# Other versions say it otherwise: "Address" for "Access to", the offset in front of the function, a file with line information, a
# size with separators, on a line of its own.
OLDER = """\
========= COMPUTE-SANITIZER
some output of the program
========= Invalid __global__ write of size 4 bytes
=========     at 0x90 in /src/cuda_src/testing/conformance.cu:31:copy_element
=========     by thread (1,0,0) in block (2,0,0)
=========     Address 0x7f0000000518 is out of bounds
=========     and is 25 bytes after the nearest allocation at 0x7f0000000400
=========        of size 256 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at 0x150 in void other(float const *, int)
=========     by thread (7,0,0) in block (0,0,0)
=========     Access at 0x100 is out of bounds
=========     and is 3,396,604,021 bytes before the nearest allocation at 0x7f0000000400 of size 4,096 bytes
=========
========= Error: Race reported between Write access at sum+0x140 in basic.cu:12
=========     and Read access at sum+0xe0 in basic.cu:14 [1 hazard]
=========
========= Barrier error detected. Divergent thread(s) in block.
=========     at divergent_barrier+0x2c8
=========     by thread (63,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""


def use(ptr: int, nbytes: int, label: str, start: int | None = None, size: int | None = None) -> dict[str, Any]:
    return {"ptr": ptr, "nbytes": nbytes, "item": 4, "buffer": label, "start": start or ptr, "size": size or nbytes,
            "label": label}  # fmt: skip


BASE = 0x7F0000000000
LAUNCHES = [
    {"user": "step/c6", "kernel": "copy_element", "args": {"x": use(BASE, 256, "x"), "y": use(BASE + 0x200, 256, "g6")}},
    {"user": "step/c7", "kernel": "copy_element", "args": {"x": use(BASE, 256, "x"), "y": use(BASE + 0x400, 256, "g7")}},
    {"user": "step/total", "kernel": "sum", "args": {"x": use(BASE + 0x400, 256, "g7")}},
    {"user": "step/d", "kernel": "divergent_barrier", "args": {}},
]  # fmt: skip


def planted(gradient7: int) -> list[dict[str, Any]]:
    """The map of tools/planted_faults.py, for reports in which the gradient of child 7 lies there."""
    step = 0x200
    found = [{"user": f"step/c{k}", "kernel": "copy_element",
              "args": {"x": use(gradient7 - 9 * step, 256, "features"),
                       "y": use(gradient7 + (k - 7) * step, 256, f"gradient{k}")}} for k in range(13)]  # fmt: skip
    found.insert(8, {"user": "step/c7", "kernel": "race_shared", "args": {"y": use(gradient7, 256, "gradient7")}})
    found.insert(8, {"user": "step/c7", "kernel": "warp_sum",
                     "args": {"x": use(FRESH, 256, "fresh"), "y": use(gradient7, 256, "gradient7")}})  # fmt: skip
    return found


def real(name: str) -> list[Report]:
    return parse_sanitizer((REPORTS / f"{name}.txt").read_text())


@pytest.mark.parametrize(("name", "address", "gradient7", "index"), [
    ("memcheck", 0x7FE420A01318, GRADIENT7, 70), ("memcheck-before", 0x7F9C38A011F4, 0x7F9C38A01200, -3)])  # fmt: skip
def test_memcheck_on_an_h200_names_child_kernel_argument_and_index(
    name: str, address: int, gradient7: int, index: int
) -> None:
    """A write planted in child 7 of 13, found in a graph launch."""
    (report,) = real(name)
    assert report == Report("Invalid __global__ write of size 4 bytes", "copy_element", "block (0,0,0), thread (0,0,0)", address,
                            gradient7, size=256)  # fmt: skip
    (found,) = locate([report], planted(gradient7))
    assert str(found) == (f"Invalid __global__ write of size 4 bytes: child step/c7, kernel copy_element, argument y, "
                          f"index {index} of 64 of gradient7, allocation gradient7, block (0,0,0), thread (0,0,0)")  # fmt: skip


def test_racecheck_on_an_h200_names_the_children_that_launch_the_kernel() -> None:
    one, two = real("racecheck")
    assert one == two and (one.kernel, one.address) == ("race_shared", None)
    (found,) = locate([one, two], planted(GRADIENT7))
    assert (found.children, found.argument, found.times) == (["step/c7"], None, 2)
    assert found.what == "Race reported between Write and Read access of shared memory, 256 hazards"


def test_initcheck_on_an_h200_names_the_argument_that_was_read() -> None:
    reports = real("initcheck")
    assert [r.address for r in reports] == [FRESH, FRESH + 4, FRESH + 8]
    assert {r.what for r in reports} == {"Uninitialized __global__ memory read of size 4 bytes"}
    (found,) = locate(reports, planted(GRADIENT7))
    assert (found.children, found.kernel, found.argument, found.index, found.times) == (
        ["step/c7"], "warp_sum", "x", "0 of 64 of fresh", 3)  # fmt: skip


def test_a_report_and_the_map_of_the_same_run_on_an_h200() -> None:
    launches = [json.loads(line) for line in (REPORTS / "memcheck-write.jsonl").read_text().splitlines()]
    assert len(launches) == 14
    (found,) = locate(real("memcheck-write"), launches)
    assert (found.children, found.argument, found.index) == (["step/c7"], "y", "70 of 64 of gradient7")


@pytest.mark.parametrize(("name", "what", "kernel"), [
    ("mask", "Invalid arguments", "wrong_mask"), ("split", "Divergent thread(s) in warp", "split_barrier")])  # fmt: skip
def test_synccheck_on_an_h200_names_kernel_and_thread(name: str, what: str, kernel: str) -> None:
    one, two = real(f"synccheck-{name}")
    assert one.what == two.what == f"Barrier error detected. {what}"
    assert one.kernel == two.kernel == kernel and one.thread and one.thread.startswith("block (0,0,0), thread (")
    (found,) = locate([one, two], [{"user": "step/c7", "kernel": kernel, "args": {}}])
    assert (found.children, found.times) == (["step/c7"], 2)


def test_reports_of_other_versions_are_read() -> None:
    write, other, race, barrier = parse_sanitizer(OLDER)
    assert write == Report("Invalid __global__ write of size 4 bytes", "copy_element", "block (2,0,0), thread (1,0,0)",
                           0x7F0000000518, 0x7F0000000400, size=256)  # fmt: skip
    assert (other.kernel, other.size) == ("other", 4096)
    assert (race.what, race.kernel) == (
        "Race reported between Write and Read access of shared memory, 1 hazards",
        "sum",
    )
    assert (barrier.what, barrier.kernel) == (
        "Barrier error detected. Divergent thread(s) in block",
        "divergent_barrier",
    )
    assert parse_sanitizer("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []
    found = locate([write, other, race, barrier], LAUNCHES)
    assert (found[0].children, found[0].argument, found[0].index) == (["step/c7"], "y", f"{0x118 // 4} of 64 of g7")
    assert found[1].children == [] and "child no child of ours" in str(found[1])
    assert (found[2].children, found[3].children) == (["step/total"], ["step/d"])


def test_hostsim_reports_are_read_where_they_stand() -> None:
    text = """Traceback ...
DriverError: cuStreamSync...; hostsim: kernel copy_element, block (0,0,0), thread (3,0,0): illegal address 0x7f0000000518: \
24 bytes behind g7 (256 bytes); the context is dead
kernel sum: wrote 4 bytes before g7 (256 bytes)
kernel divergent_barrier, block (0,0,0): divergent barrier: of 64 threads 59 wait at __syncthreads(), 0 at a warp function, \
5 have exited; thread (5,0,0) waits for ever
"""
    write, slack, barrier = locate(parse_hostsim(text), LAUNCHES)
    assert (write.children, write.argument, write.index) == (["step/c7"], "y", "70 of 64 of g7")
    assert (slack.children, slack.argument, slack.index) == (["step/total"], "x", "-1 of 64 of g7")
    assert barrier.children == ["step/d"] and "59 wait" in barrier.what


PLANTS = [sys.executable, str(Path(__file__).resolve().parents[2] / "tools" / "planted_faults.py")]


@pytest.mark.hostsim
def test_a_planted_write_is_named_on_hostsim(cli: Cli, tmp_path: Path) -> None:
    env = {"FOXHUNT_DRIVER": "hostsim"}
    done = cli("sanitize", "--json", "--save", str(tmp_path / "kept"), "--", *PLANTS, "write", env=env)
    assert done.code == 1
    (found,) = done.json["findings"]
    assert (found["children"], found["kernel"], found["argument"]) == (["step/c7"], "copy_element", "y")
    assert found["index"] == "70 of 64 of gradient7" and found["allocation"] == "gradient7"
    assert "! illegal address: child step/c7, kernel copy_element, argument y, index 70 of 64 of gradient7" in done.out
    assert "illegal address" in (tmp_path / "kept" / "report.txt").read_text()
    assert len((tmp_path / "kept" / "launches.jsonl").read_text().splitlines()) == 14


@pytest.mark.hostsim
@pytest.mark.parametrize(("fault", "what"), [
    ("none", None), ("barrier", "divergent barrier: of 64 threads 59 wait"),
    ("mask", "with mask 0x00000001, which does not name it"),
])  # fmt: skip
def test_barriers_are_checked_on_hostsim(cli: Cli, fault: str, what: str | None) -> None:
    done = cli("sanitize", "--json", "--tool", "synccheck", "--", *PLANTS, fault, env={"FOXHUNT_DRIVER": "hostsim"})
    if what is None:
        assert (done.code, done.json["status"], done.json["findings"]) == (0, "ok", [])
    else:
        (found,) = done.json["findings"]
        assert found["children"] == ["step/c7"] and what in found["what"]


def test_what_cannot_be_run_is_refused(cli: Cli) -> None:
    done = cli("sanitize")
    assert done.code == 2 and "write it behind --" in done.error
    done = cli("sanitize", "--", "no-such-command-here", env={"FOXHUNT_DRIVER": "hostsim"})
    assert done.code == 2 and "on PATH" in done.error
    done = cli("sanitize", "--", sys.executable, "-c", "", env={"FOXHUNT_DRIVER": "cuda", "CUDA_HOME": "", "CUDA_PATH": "",
                                                               "PATH": "/nowhere"})  # fmt: skip
    assert done.code == 4 and "compute-sanitizer is not installed" in done.error
    done = cli("sanitize", "--", sys.executable, "-c", "raise SystemExit(3)", env={"FOXHUNT_DRIVER": "hostsim"})
    assert done.code == 1 and "the command ended with 3" in done.out
