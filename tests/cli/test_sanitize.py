"""`foxhunt-rt sanitize`: reports of compute-sanitizer are read and mapped; on hostsim a planted fault is found and named."""

from __future__ import annotations

import sys

import pytest

from foxhunt_rt.cli.sanitize import Report, locate, parse_hostsim, parse_sanitizer

from .conftest import Cli

# The formats of several versions: "Address", "Access at" and "Access to"; offset in front of the function or behind it; a
# file with line information; a size with separators, on a line of its own.
MEMCHECK = """\
========= COMPUTE-SANITIZER
some output of the program
========= Invalid __global__ write of size 4 bytes
=========     at copy_element+0x90
=========     by thread (0,0,0) in block (2,0,0)
=========     Access to 0x7f0000000518 is out of bounds
=========     and is 25 bytes after the nearest allocation at 0x7f0000000400
=========        of size 256 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x3344e0]
=========                in /lib/x86_64-linux-gnu/libcuda.so.1
=========
========= Invalid __global__ write of size 4 bytes
=========     at 0x90 in /src/cuda_src/testing/conformance.cu:31:copy_element
=========     by thread (1,0,0) in block (2,0,0)
=========     Address 0x7f0000000518 is out of bounds
=========     and is 25 bytes after the nearest allocation at 0x7f0000000400 of size 256 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at 0x150 in void other(float const *, int)
=========     by thread (7,0,0) in block (0,0,0)
=========     Access at 0x100 is out of bounds
=========     and is 3,396,604,021 bytes before the nearest allocation at 0x7f0000000400 of size 4,096 bytes
========= ERROR SUMMARY: 3 errors
"""
OTHERS = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum+0x140 in basic.cu:12
=========     and Read access at sum+0xe0 in basic.cu:14 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
========= Uninitialized __global__ memory read of size 4 bytes
=========     at sum+0x70 in basic.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f0000000410
========= Barrier error detected. Divergent thread(s) in block.
=========     at divergent_barrier+0x2c8
=========     by thread (63,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""


def use(ptr: int, nbytes: int, label: str, start: int | None = None, size: int | None = None) -> dict[str, object]:
    return {"ptr": ptr, "nbytes": nbytes, "item": 4, "buffer": label, "start": start or ptr, "size": size or nbytes,
            "label": label}  # fmt: skip


BASE = 0x7F0000000000
LAUNCHES = [
    {"user": "step/c6", "kernel": "copy_element", "args": {"x": use(BASE, 256, "x"), "y": use(BASE + 0x200, 256, "g6")}},
    {"user": "step/c7", "kernel": "copy_element", "args": {"x": use(BASE, 256, "x"), "y": use(BASE + 0x400, 256, "g7")}},
    {"user": "step/total", "kernel": "sum", "args": {"x": use(BASE + 0x400, 256, "g7")}},
    {"user": "step/d", "kernel": "divergent_barrier", "args": {}},
]  # fmt: skip


def test_a_memcheck_report_is_read() -> None:
    first, second, third = parse_sanitizer(MEMCHECK)
    assert first == Report("Invalid __global__ write of size 4 bytes", "copy_element", "block (2,0,0), thread (0,0,0)",
                           0x7F0000000518, 0x7F0000000400, size=256)  # fmt: skip
    assert (second.kernel, second.address) == ("copy_element", first.address)
    assert (third.kernel, third.size) == ("other", 4096)


def test_reports_of_the_other_tools_are_read() -> None:
    race, initial, barrier = parse_sanitizer(OTHERS)
    assert (race.what, race.kernel) == ("Race reported between Write", "sum")
    assert (initial.what, initial.address) == ("Uninitialized __global__ memory read of size 4 bytes", 0x7F0000000410)
    assert (
        barrier.what == "Barrier error detected. Divergent thread(s) in block" and barrier.kernel == "divergent_barrier"
    )
    assert parse_sanitizer("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def test_child_argument_index_and_allocation_are_found() -> None:
    write, other = locate(parse_sanitizer(MEMCHECK), LAUNCHES)
    assert (write.children, write.argument, write.allocation, write.times) == (["step/c7"], "y", "g7", 2)
    assert write.index == f"{0x118 // 4} of 64 of g7"
    assert str(write) == ("Invalid __global__ write of size 4 bytes: child step/c7, kernel copy_element, argument y, index 70 of "
                          "64 of g7, allocation g7, block (2,0,0), thread (0,0,0) (2 times)")  # fmt: skip
    assert other.children == [] and "child no child of ours" in str(other)
    race, initial, barrier = locate(parse_sanitizer(OTHERS), LAUNCHES)
    assert race.children == ["step/total"] and race.argument is None
    assert (initial.argument, initial.index) == ("x", "4 of 64 of g7")
    assert barrier.children == ["step/d"]


def test_hostsim_reports_are_read_where_they_stand() -> None:
    text = """Traceback ...
DriverError: cuStreamSync...; hostsim: kernel copy_element, block (0,0,0), thread (3,0,0): illegal address 0x7f0000000518: \
24 bytes behind g7 (256 bytes); the context is dead
kernel sum: wrote 4 bytes before g7 (256 bytes)
kernel divergent_barrier, block (0,0,0): of 64 threads 59 wait at __syncthreads(), 0 at a warp function, 5 have exited
"""
    write, slack, barrier = locate(parse_hostsim(text), LAUNCHES)
    assert (write.children, write.argument, write.index) == (["step/c7"], "y", "70 of 64 of g7")
    assert (slack.children, slack.argument, slack.index) == (["step/total"], "x", "-1 of 64 of g7")
    assert barrier.children == ["step/d"] and "59 wait" in barrier.what


PROGRAM = """
import numpy as np
from foxhunt_rt import Runtime
rt = Runtime()
plan = rt.plan("step")
x = rt.array(np.arange(64, dtype=np.float32), "features")
for k in range(13):
    y = rt.zeros(64, np.float32, f"gradient{k}")
    with plan.child(f"c{k}", reads=[x], writes=[y]) as c:
        c.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 3, "to": TO if k == 7 else 5, "value": 1.0})
step = plan.build()
step.launch()
rt.synchronize()
"""


@pytest.mark.hostsim
def test_a_planted_write_is_named_on_hostsim(cli: Cli) -> None:
    env = {"FOXHUNT_DRIVER": "hostsim"}
    done = cli("sanitize", "--json", "--", sys.executable, "-c", PROGRAM.replace("TO", "70"), env=env)
    assert done.code == 1
    (found,) = done.json["findings"]
    assert (found["children"], found["kernel"], found["argument"]) == (["step/c7"], "copy_element", "y")
    assert found["index"] == "70 of 64 of gradient7" and found["allocation"] == "gradient7"
    assert "! illegal address: child step/c7, kernel copy_element, argument y, index 70 of 64 of gradient7" in done.out
    done = cli(
        "sanitize", "--json", "--tool", "synccheck", "--", sys.executable, "-c", PROGRAM.replace("TO", "6"), env=env
    )
    assert (done.code, done.json["status"], done.json["findings"]) == (0, "ok", [])


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
