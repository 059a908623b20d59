"""Arrays and buffers that share memory are alive when the interpreter ends, or another library still works then: exit 0, and
not a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SHARED = """
import gc, numpy as np, foxhunt_rt as fx
from foxhunt_rt import interop
rt = fx.Runtime()
x = rt.array(np.ones(64, np.float32), "x")
capsule = x.__dlpack__(max_version=(1, 0))
twin = interop.from_dlpack(rt, x, "twin")
host = interop.wrap(rt, np.ones(64, np.float32), "host")
plan = rt.plan("p")
with plan.child("a", reads=[], writes=[host, twin]) as c:
    for b in (host, twin):
        c.launch("add_scalar", (1,), (64,), dict(x=b, value=1.0, n=64))
step = plan.build(steps_per_launch=2)
step.launch()
cycle = [x, twin, host, step, capsule]
cycle.append(cycle)
{more}
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("arrays = [np.from_dlpack(x), np.from_dlpack(x[3:])]", marks=pytest.mark.hostsim, id="numpy"),
        pytest.param("del x, twin, host, step, capsule, cycle; gc.collect()", id="collected"),
        pytest.param("rt.close()", id="closed first"),
        pytest.param("import builtins; builtins.keep = cycle; raise SystemExit(0)", id="left behind"),
    ],
)
def test_exit_with_shared_memory(more: str, driver: str) -> None:
    assert run(SHARED.format(more=more), driver) == (0, "", "")


TWO_LIBRARIES = """
import atexit
def theirs(when):
    status = [cu.cuCtxSetCurrent(context)[0], cu.cuMemsetD32(memory, 7, 4)[0], cu.cuCtxSynchronize()[0]]
    assert not any(map(int, status)), status
    try:
        x.to_numpy()
    except LifetimeError:
        print(when, "ours has ended")
    else:
        print(when, "ours works")
def leave():
    status = [cu.cuMemFree(memory)[0], cu.cuDevicePrimaryCtxRelease(device)[0]]
    assert not any(map(int, status)), status
atexit.register(leave)
atexit.register(theirs, "registered before:")
import numpy as np, foxhunt_rt as fx
from foxhunt_rt.driver import LifetimeError
rt = fx.Runtime()
x = rt.zeros(64, np.float32, "x")
atexit.register(theirs, "registered after:")
cu, device = rt.context.cu, rt.device.handle
context = cu.cuDevicePrimaryCtxRetain(device)[1]
cu.cuCtxSetCurrent(context)
memory = cu.cuMemAlloc(16)[1]
{more}
"""


@pytest.mark.parametrize("more", ["", "rt.close()"], ids=["left", "closed"])
def test_another_library_works_to_its_own_end(more: str, driver: str) -> None:
    """It has retained the primary context itself, which therefore outlives ours, whoever ends first. Of the program's `atexit`
    functions those that were registered after our import come first, and may use what is ours."""
    ours = "works" if not more else "has ended"
    wanted = f"registered after: ours {ours}\nregistered before: ours has ended\n"
    assert run(TWO_LIBRARIES.format(more=more), driver) == (0, wanted, "")


def run(code: str, driver: str) -> tuple[int, str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "FOXHUNT_DRIVER": driver}
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], text=True, timeout=60, env=environment,
                          capture_output=True, check=False)  # fmt: skip
    return done.returncode, done.stdout, done.stderr
