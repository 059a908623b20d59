"""hostsim and the kernels built with AddressSanitizer and UBSan: three steps are clean, a planted mistake is found."""

from __future__ import annotations

import json

import pytest
import sanitize_host

import build

pytestmark = [pytest.mark.hostsim, pytest.mark.slow, pytest.mark.timeout(3600)]
SANITIZERS = "address,undefined"

OUT_OF_BOUNDS = """
import numpy as np, foxhunt_rt as fx
rt = fx.Runtime()
x = rt.zeros(8, np.float32, "x")
class Longer:
    ptr = x.ptr; nbytes = 4 * 4096; dtype = np.dtype(np.float32); label = "x"; alive = True; shape = (4096,)
rt.ungraphed("test").launch("add_scalar", (128,), (32,), dict(x=Longer(), value=1.0, n=4096))
rt.synchronize()
"""


def test_address_and_undefined() -> None:
    assert build.main(["--stop", "--sanitize", SANITIZERS]) == 0
    steps = sanitize_host.run(SANITIZERS)
    assert (steps.returncode, steps.stderr) == (0, "") and json.loads(steps.stdout)["equal"], steps.stderr
    planted = sanitize_host.run(SANITIZERS, OUT_OF_BOUNDS)
    assert planted.returncode == 99 and "AddressSanitizer: heap-buffer-overflow" in planted.stderr, planted.stderr
