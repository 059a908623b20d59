"""A driver call of a short training run fails, each in turn: a typed error, the process alive, a quiet exit, nothing leaked.

Every run is a fork of one process (fault_sweep.py). The short test takes one call of each kind, the slow one every
STRIDE-th of some 2,850 calls; FOXHUNT_SWEEP_STRIDE=1 takes every one, and the better part of an hour for each error.
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

#: Calls whose failure leaves behind what they should have destroyed, and whose status a destructor does not look at.
DESTROYS = ("cuMemFree", "cuMemFreeHost", "cuModuleUnload", "cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy",
            "cuGraphExecDestroy", "cuDevicePrimaryCtxRelease")  # fmt: skip
FAILS = ("cuDevicePrimaryCtxRetain@1", "cuCtxPushCurrent@200", "cuStreamCreate@3", "cuMemAlloc@20", "cuMemHostAlloc@1",
         "cuModuleLoadData@7", "cuFuncGetParamInfo@5", "cuMemcpyHtoDAsync@9", "cuStreamBeginCapture@4",
         "cuStreamEndCapture@2", "cuGraphAddChildGraphNode@3", "cuGraphInstantiate@1", "cuGraphUpload@1",
         "cuGraphLaunch@3", "cuStreamSynchronize@40", "launch:adam_update@2")  # fmt: skip


STRIDE = int(os.environ.get("FOXHUNT_SWEEP_STRIDE", "41"))  # a prime, so that no loop of calls is met at one place only


def sweep(plans: list[str]) -> list[dict[str, Any]]:
    program, root = Path(__file__).with_name("fault_sweep.py"), Path(__file__).resolve().parents[2]
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "PYTHONPATH": f"{root}{os.pathsep}{root / 'tools'}"}
    command = [sys.executable, str(program), *plans]
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["plan"] for r in results] == plans
    return results


def check(result: dict[str, Any], *, sticky: bool, may_complete: bool) -> None:
    assert result["status"] == 0 and result["printed"] == "", result
    if result["outcome"] == "completed":
        assert may_complete, result
    else:
        assert result["outcome"] in ("DriverError", "OutOfMemory", "ContextDead", "DriverNotFound"), result
        assert len(result["text"].splitlines()) == 1, result
    # After a sticky error nothing can be given back before the process ends.
    if not sticky and not any(name in result["text"] for name in DESTROYS) and result["outcome"] != "completed":
        assert not any(result["live"].values()), result


def test_a_run_without_a_fault_completes_and_leaves_nothing() -> None:
    (result,) = sweep([""])
    assert result["outcome"] == "completed" and result["live"] and not any(result["live"].values()), result
    assert result["calls"] > 1000 and (result["status"], result["printed"]) == (0, "")


def test_one_call_of_each_kind_fails() -> None:
    plans = []
    for i, place in enumerate(FAILS):
        sticky = place.startswith("launch") or i % 2 == 0
        error = "LAUNCH_FAILED" if sticky else "OUT_OF_MEMORY" if "Alloc" in place else "NOT_SUPPORTED"
        plans.append(f"{place}={error}")
    for plan, result in zip(plans, sweep(plans), strict=True):
        check(result, sticky=plan.endswith("LAUNCH_FAILED"), may_complete=False)
        assert plan in result["text"] or result["outcome"] == "ContextDead", result


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "ILLEGAL_ADDRESS"])
def test_every_call_fails_in_turn(error: str) -> None:
    (whole,) = sweep([""])
    plans = [f"call@{n}={error}" for n in range(1, whole["calls"] + 1, STRIDE)]
    for result in sweep(plans):
        # Destructors and questions whose answer is not needed go on.
        check(result, sticky=error == "ILLEGAL_ADDRESS", may_complete=True)
