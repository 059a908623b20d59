"""The probes, and the kernels that they measure with."""

from __future__ import annotations

import time

import numpy as np

N = 64


def test_checksums_of_every_run_are_kept(runtime):
    x, count = runtime.array(np.arange(N, dtype=np.float32), "x"), runtime.zeros(1, np.uint32, "count")
    sums = runtime.zeros(4, np.float32, "sums")
    user = runtime.ungraphed("probe test")
    for _ in range(6):
        user.launch("checksum", (1,), (64,), dict(x=x, count=count, sums=sums, n=N, capacity=4))
        user.launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=N))
    first = N * (N - 1) / 2
    assert count.to_numpy()[0] == 6
    assert sums.to_numpy().tolist() == [first + N * k for k in (4, 5, 2, 3)]


def test_the_stack_walk_computes_what_it_says(runtime):
    """An oracle in Python: the sum that thread 0 of block 0 makes of its frame."""
    x = np.arange(7, dtype=np.float32)
    y = runtime.zeros(1, np.float32, "y")
    runtime.ungraphed("probe test").launch(
        "walk_stack", (2,), (32,), dict(x=runtime.array(x, "x"), y=y, n=7, rounds=50)
    )
    frame, k, total = [float(x[i % 7]) for i in range(960)], 0, 0.0
    for _ in range(50):
        k = (k * 5 + 1) % 960
        total += frame[k]
        frame[k] = total
    assert y.to_numpy()[0] == np.float32(total)


def test_spin_keeps_the_device_busy(runtime):
    runtime.synchronize()
    started = time.perf_counter()
    runtime.ungraphed("probe test").launch("spin", (1,), (1,), dict(ns=5_000_000))
    runtime.synchronize()
    assert time.perf_counter() - started >= 0.005
