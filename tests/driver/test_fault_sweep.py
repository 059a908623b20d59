"""Every driver call of a short training run fails in turn: a typed error, the process alive, a quiet exit, nothing leaked.

fault_sweep.py forks at each call. The short test takes the first call of every site (an entry point, and the line that asked for
it), the slow one every call: some 2,900 of them with each error, in about three minutes on two idle cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hostsim
ROOT = Path(__file__).resolve().parents[2]

#: Calls whose failure leaves behind what they should have destroyed, and whose status a destructor does not look at.
DESTROYS = ("cuMemFree", "cuMemFreeHost", "cuModuleUnload", "cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy",
            "cuGraphExecDestroy", "cuDevicePrimaryCtxRelease")  # fmt: skip


def sweep(*options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run without a fault, and what became of each fork."""
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "", "FOXHUNT_GRAPH": "on",
           "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("fault_sweep.py")), *options]
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    *forks, whole = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["outcome"] == "completed" and not any(whole["live"].values()) and whole["calls"] > 1000, whole
    return whole, forks


def wrong(fork: dict[str, Any]) -> str:
    """What is wrong with the end of a fork; empty when nothing is."""
    if fork["status"] != 0 or fork["printed"]:
        return "it did not end quietly with 0"
    if fork["outcome"] == "completed":
        if not fork["closing"]:  # a destructor goes on
            return "the failure was not noticed"
    elif fork["outcome"] not in ("DriverError", "OutOfMemory", "ContextDead", "DriverNotFound"):
        return "the error is not typed"
    elif len(fork["text"].splitlines()) != 1:
        return "the error is not one line"
    elif fork["outcome"] != "ContextDead" and fork["entry"].removesuffix("WithFlags") not in fork["text"]:
        return "the error does not name the call"
    # After a sticky error nothing can be given back before the process ends.
    if fork["error"] != "ILLEGAL_ADDRESS" and fork["entry"] not in DESTROYS and any(fork["live"].values()):
        return "something is left"
    return ""


def report(forks: list[dict[str, Any]]) -> str:
    found = [f"{why}: {fork}" for fork in forks if (why := wrong(fork))]
    return f"{len(found)} of {len(forks)}: " + "\n".join(found[:5]) if found else ""


def test_the_first_call_of_every_site_fails() -> None:
    whole, forks = sweep("--sites", "1")
    entries = {fork["entry"] for fork in forks}
    assert whole["sites"] > 60 and len(entries) > 30, whole
    wanted = {"cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuMemHostGetDevicePointer", "cuModuleLoadData",
              "cuGraphLaunch", "cuStreamEndCapture", "cuGraphAddChildGraphNode", "cuStreamSynchronize", *DESTROYS}  # fmt: skip
    assert wanted - {"cuEventDestroy"} <= entries
    assert len(forks) == 2 * whole["sites"] + sum("Alloc" in f["entry"] for f in forks) // 3
    assert not report(forks), report(forks)


@pytest.mark.parametrize("fork", [
    dict(outcome="completed", entry="cuMemAlloc"), dict(outcome="untyped TypeError"), dict(status=-11),
    dict(printed="Exception ignored"),
    dict(live={"modules": 1}), dict(text="two\nlines"), dict(text="some other call"),
])  # fmt: skip
def test_a_bad_end_is_seen(fork: dict[str, Any]) -> None:
    good = dict(status=0, printed="", outcome="DriverError", entry="cuMemAlloc", text="cuMemAlloc: no", error="NOT_SUPPORTED",
                live={"modules": 0}, closing=False)  # fmt: skip
    assert not wrong(good) and wrong({**good, **fork})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_call_fails_in_turn() -> None:
    whole, forks = sweep()
    assert len(forks) >= 2 * whole["calls"]
    assert not report(forks), report(forks)


def test_a_kernel_that_fails_in_a_replay_is_a_typed_error() -> None:
    """What no call can stand for: the error comes from the device, at a later call."""
    code = ("import fault_sweep, foxhunt_rt as fx\n"
            "try: fault_sweep.train()\n"
            "except fx.driver.DriverError as error: print(error)")  # fmt: skip
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "",
           "FOXHUNT_FAULTS": "launch:adam_update@2=LAUNCH_FAILED",
           "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tools", Path(__file__).parent)))}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "CUDA_ERROR_LAUNCH_FAILED" in done.stdout and "in kernel adam_update" in done.stdout
