"""The forwarding libcuda.so.1: it counts and logs every call, whoever makes it, and changes none.

Each script runs in a process of its own, since the library must be there before anything else that uses CUDA. On hostsim, which
counts by itself, the two counts are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foxhunt_rt.driver.shim import LIBRARY
from foxhunt_rt.driver.tracing import PLUMBING

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the call trace is built on x86-64 alone")

START = """
import ctypes, json, sys, threading
sys.path[:0] = ["tools"]
import numpy as np, foxhunt_rt as fx
from foxhunt_rt import driver

def report(**found):
    shim, sim = driver.shim(), driver.hostsim()
    seen = shim.counts() if shim else {}
    found["differs"] = {} if sim is None else {
        name: (n, sim.fxHostsimCounter(name.encode())) for name, n in seen.items() if sim.fxHostsimCounter(name.encode()) != n}
    print(json.dumps(found))
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"FOXHUNT_HOSTSIM": "", "FOXHUNT_TRACE": "1", "PYTHONPATH": path, **env}
    return subprocess.run([sys.executable, "-c", START + code], cwd=ROOT, env={**os.environ, **settings}, text=True,
                          capture_output=True, timeout=100, check=False)  # fmt: skip


def traced(code: str) -> dict[str, Any]:
    """What a script reported."""
    done = run(code)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("differs") == {}
    return found


def test_a_thousand_steps_are_a_thousand_launches_seen_from_outside() -> None:
    """No allocation, free, load, attribute, limit or synchronizing call, from whatever library: nothing but the launch, and
    which context is current."""
    found = traced("""
import subjects
learner = subjects.odd_learner(fx.Runtime())
for _ in range(3):
    learner.step()
learner.drain()
before = driver.shim().total
with driver.DriverCalls() as calls:
    for _ in range(1000):
        learner.step()
log = driver.shim().log(before)
learner.drain()
report(calls=calls.found, log=log, launched=learner.launched)
""")
    assert found["launched"] == 1003
    assert found["calls"].pop("cuGraphLaunch") == 1000
    assert set(found["calls"]) <= PLUMBING, found["calls"]
    work = [name for name in found["log"] if name not in PLUMBING]
    assert work == ["cuGraphLaunch"] * 1000


def test_calls_past_this_package_are_seen_in_order_and_every_thread_counts() -> None:
    """By cuda-python (cuGetProcAddress), and by a library that looks the symbol up itself."""
    found = traced("""
rt = fx.Runtime()
cu, shim, raw = rt.context.cu, driver.shim(), ctypes.CDLL("libcuda.so.1")
with rt.context.current():
    before = shim.total
    with driver.DriverCalls() as calls:
        cu.cuCtxSynchronize()
        address = cu.cuMemAlloc(64)[1]
        raw.cuMemFree_v2(ctypes.c_uint64(int(address)))
        rt.synchronize()
log = shim.log(before)

def count():
    for _ in range(2000):
        raw.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))

before = shim.counts()["cuDeviceGetCount"]
threads = [threading.Thread(target=count) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
counted = shim.counts()["cuDeviceGetCount"] - before
for _ in range(33):  # the log remembers 65,536
    count()
try:
    shim.log(0)
except driver.FoxhuntError as error:
    refusal = str(error)
report(log=log, found=calls.found, ours=calls.ours, counted=counted, refusal=refusal)
""")
    order = [name for name in found["log"] if name not in PLUMBING]
    assert order == ["cuCtxSynchronize", "cuMemAlloc", "cuMemFree", "cuStreamSynchronize"]
    assert {name: n for name, n in found["found"].items() if name not in PLUMBING} == dict.fromkeys(order, 1)
    assert "cuMemFree" not in found["ours"] and found["ours"]["cuStreamSynchronize"] == 1
    assert found["counted"] == 8000
    assert "more than the trace remembers" in found["refusal"]


def test_results_and_arguments_pass_through_unchanged() -> None:
    """Kernels with eleven arguments a launch, and error codes."""
    found = traced("""
rt = fx.Runtime()
x, total = rt.array(np.arange(1000, dtype=np.float32), "x"), rt.zeros(1, np.float32, "total")
plan = rt.plan("p")
with plan.child("add", reads=[], writes=[x]) as c:
    c.launch("add_scalar", (8,), (128,), dict(x=x, value=1.0, n=1000))
with plan.child("sum", reads=[x], writes=[total]) as c:
    c.launch("sum", (1,), (256,), dict(x=x, sum=total, n=1000))
step = plan.build()
verified = step.verify(2).bitwise_equal
step.launch()
cu = rt.context.cu
with rt.context.current():
    refused = cu.cuMemFree(12345)[0].name
report(total=float(total.to_numpy()[0]), verified=verified, refused=refused)
""")
    assert found["verified"] and found["total"] == sum(range(1000)) + 1000
    assert found["refused"] == "CUDA_ERROR_INVALID_VALUE"


def test_the_assertions_see_other_libraries() -> None:
    """What only a count from outside finds, under either driver."""
    found = traced("""
from foxhunt_rt.testing import assert_no_sync
rt = fx.Runtime()
with rt.context.current():
    try:
        with assert_no_sync():
            rt.context.cu.cuCtxSynchronize()
    except AssertionError as error:
        text = str(error)
report(text=text)
""")
    assert "1 cuCtxSynchronize (1 past this package's checked calls" in found["text"]


def test_a_library_that_came_first_is_named(tmp_path: Path) -> None:
    other = tmp_path / "libcuda.so.1"
    other.write_bytes(LIBRARY.read_bytes())  # any library of that name
    done = run(f"ctypes.CDLL({str(other)!r})\nfx.Runtime()")
    assert done.returncode == 1
    assert f"{other} is loaded in this process already" in done.stderr.splitlines()[-1]


def test_a_driver_that_cannot_be_loaded_is_named() -> None:
    done = run("from foxhunt_rt.driver.shim import Shim\nShim('/nowhere/libcuda.so.1')")
    assert done.returncode == 1
    assert "the trace cannot load /nowhere/libcuda.so.1" in done.stderr.splitlines()[-1]


@pytest.mark.gpu
def test_the_calls_of_pytorch_are_seen() -> None:
    """`item()` waits for the device inside PyTorch, whose CUDA runtime finds the driver by itself."""
    code = """
rt = fx.Runtime()
import torch
x = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
with driver.DriverCalls() as calls:
    y = (x * 2).sum()
with driver.DriverCalls() as waiting:
    value = y.item()
report(value=value, launched=calls.found, waited=waiting.found, ours=waiting.ours)
"""
    done = run(code)
    if "No module named 'torch'" in done.stderr:
        pytest.skip("PyTorch is not installed")
    found = traced(code)
    assert found["value"] == 2000.0 and not found["ours"]
    assert sum(n for name, n in found["launched"].items() if name.startswith("cuLaunchKernel")) >= 2, found["launched"]
    assert "cuStreamSynchronize" in found["waited"], found["waited"]
