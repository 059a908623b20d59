"""hostsim and the kernels built with the compiler's sanitizers: three steps are clean, a planted mistake is found."""

from __future__ import annotations

import json

import pytest
import sanitize_host

import build

pytestmark = [pytest.mark.hostsim, pytest.mark.slow, pytest.mark.timeout(3600)]
OUT_OF_BOUNDS = """
import numpy as np, foxhunt_rt as fx
rt = fx.Runtime()
x = rt.zeros(8, np.float32, "x")
class Longer:
    ptr = x.ptr; nbytes = 4 * 4096; dtype = np.dtype(np.float32); label = "x"; alive = True; shape = (4096,)
rt.ungraphed("test").launch("add_scalar", (128,), (32,), dict(x=Longer(), value=1.0, n=4096))
rt.synchronize()
"""


RACE = """
import numpy as np, foxhunt_rt as fx
rt = fx.Runtime()
y = rt.zeros(1, np.float32, "y")
rt.ungraphed("test").launch("race_blocks", (64,), (1,), dict(y=y, blocks=64, rounds=100_000))
rt.synchronize()
"""
BARRIERS = """
import numpy as np, foxhunt_rt as fx
rt = fx.Runtime()
x, y = rt.array(np.arange(256 * 64, dtype=np.float32), "x"), rt.zeros(256 * 64, np.float32, "y")
for _ in range(5):
    rt.ungraphed("test").launch("reverse_rows", (256,), (64,), dict(x=x, y=y, rows=256, cols=64), shared=256)
assert (y.to_numpy().reshape(256, 64) == x.to_numpy().reshape(256, 64)[:, ::-1]).all()
"""


def built(sanitizers: str) -> None:
    assert build.main(["--stop", "--sanitize", sanitizers]) == 0


def test_address_and_undefined() -> None:
    built("address,undefined")
    steps = sanitize_host.run("address,undefined")
    assert (steps.returncode, steps.stderr) == (0, "") and json.loads(steps.stdout)["equal"], steps.stderr
    planted = sanitize_host.run("address,undefined", OUT_OF_BOUNDS)
    assert planted.returncode == 99 and "AddressSanitizer: heap-buffer-overflow" in planted.stderr, planted.stderr


def test_thread() -> None:
    """Every grid of several blocks is shared out among three threads, and the threads of a block are fibers."""
    built("thread")
    steps = sanitize_host.run("thread")
    assert (steps.returncode, steps.stderr) == (0, "") and json.loads(steps.stdout)["equal"], steps.stderr
    barriers = sanitize_host.run("thread", BARRIERS)
    assert (barriers.returncode, barriers.stderr) == (0, ""), barriers.stderr
    planted = sanitize_host.run("thread", RACE)
    assert planted.returncode == 99 and "WARNING: ThreadSanitizer: data race" in planted.stderr, planted.stderr
    assert "hostsim::Engine::run_block" in planted.stderr, planted.stderr
