"""Arrays and buffers that share memory are alive when the interpreter ends: exit 0, and not a word."""

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
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "FOXHUNT_DRIVER": driver}
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", SHARED.format(more=more)], text=True, timeout=60,
                          env=environment, capture_output=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
