"""The probes, and the kernels that they measure with."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError, live_allocations
from foxhunt_rt.graph import floors
from foxhunt_rt.graph.probe import ARMS, CHILDREN, ArmResult, Prober, Ratio, chosen, judge, probe_isolation

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


def test_the_naive_product(runtime):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((7, 61)).astype(np.float32)
    y = runtime.zeros((5, 61), np.float32, "y")
    args = dict(x=runtime.array(x, "x"), w=runtime.array(w, "w"), y=y, rows=5, inner=7, cols=61)
    runtime.ungraphed("probe test").launch("naive_product", (3,), (128,), args)
    np.testing.assert_allclose(y.to_numpy(), x.astype(np.float64) @ w, rtol=1e-5, atol=1e-5)


def test_spin_keeps_the_device_busy(runtime):
    runtime.synchronize()
    started = time.perf_counter()
    runtime.ungraphed("probe test").launch("spin", (1,), (1,), dict(ns=5_000_000))
    runtime.synchronize()
    assert time.perf_counter() - started >= 0.005


# ---------------------------------------------------------------- isolation
@pytest.fixture(scope="module")
def report(runtime):
    return probe_isolation(runtime, rounds=2, replays=5)


def test_every_arm_gives_the_right_checksum_of_every_replay(report):
    assert [a.arm for a in report.arms] == list(ARMS)
    assert all((a.checksums, a.checksums_wrong) == (10, 0) for a in report.arms)
    for a in report.arms:
        assert a.event_us > 0 and a.host_us > 0
        assert (a.event_ratio is None) == (a.host_ratio is None) == (a.arm.control is None)


def test_a_wrong_replay_shows_in_its_checksums(runtime):
    """A launch between replays that goes to the graph's own buffer."""
    probe = Prober(runtime, 4)
    with runtime.context.current():
        assert probe.round("copy between")[2] == 0
        probe._add_y = probe.add_x
        assert probe.round("copy between")[2] == 4
    probe.close()
    good = ArmResult(ARMS[1], 1.0, 1.0, Ratio(1, 1, 1), Ratio(1, 1, 1), 4, 0)
    assert replace(good, checksums_wrong=3).verdict == "WRONG RESULTS: 3 of 4 checksums differ"


def test_the_arms_differ_in_what_they_say(runtime):
    """The driver's own view: who shares a CUfunction with the graph, and who only a module."""
    probe = Prober(runtime, 1)
    separate, shared = probe._separate.functions, probe._shared.functions
    assert len({f.key for f in separate}) == len({id(f.module) for f in separate}) == CHILDREN
    assert len({f.key for f in shared}) == 1
    captured, modules = {f.key for f in separate}, {id(f.module) for f in separate}
    assert probe._copy.key not in captured and id(probe._copy.module) not in modules
    assert probe._mate.key not in captured and id(probe._mate.module) in modules
    probe.close()


def test_the_probe_leaves_nothing_behind(runtime, report):
    before = live_allocations()
    limit = stack(runtime)
    probe_isolation(runtime, rounds=1, replays=2, arms=["stack between, pre-sized"])
    assert live_allocations() == before
    assert stack(runtime) == limit


def stack(runtime) -> int:
    cu = runtime.context.cu
    with runtime.context.current():
        return int(runtime.context.call(cu.cuCtxGetLimit, cu.CUlimit.CU_LIMIT_STACK_SIZE))


def test_arms_bring_their_controls(runtime):
    assert [a.name for a in chosen(["stack between, pre-sized"])] == ["alone", "copy between", "stack between",
                                                                       "stack between, pre-sized"]  # fmt: skip
    with pytest.raises(FoxhuntError, match="no arm 'sharing'; the arms: alone, shared function"):
        chosen(["sharing"])
    with pytest.raises(FoxhuntError, match="checksums are exact up to 4032"):
        probe_isolation(runtime, 1, 5000)


@pytest.mark.parametrize(("ratio", "words"), [
    (Ratio(1.0, 0.99, 1.01), "costs nothing that can be seen"),
    (Ratio(1.54, 1.50, 1.60), "costs +54.0%"),
    (Ratio(1.01, 1.005, 1.05), "costs +1.0%"),
    (Ratio(0.9, 0.88, 0.95), "is faster by 10.0%"),
    (Ratio(1.0, 0.7, 1.4), "is not settled (spread 0.70 to 1.40)"),
])  # fmt: skip
def test_verdicts(ratio, words):
    assert judge(ratio) == words


def test_the_report_in_words_and_json(report):
    text = report.text()
    assert all(f"{arm.name}: {arm.text}: " in text for arm in ARMS)
    assert "alone: every child with a module of its own, nothing between replays: the baseline" in text
    found = json.loads(json.dumps(report.to_dict()))
    assert found["arms"][1]["arm"]["control"] == "alone" and found["arms"][1]["verdict"]
    assert found["loading"] in ("lazy", "eager")


# ---------------------------------------------------------------- floors
def test_floors_are_measured_and_leave_nothing_behind(runtime):
    before, modules = live_allocations(), len(runtime.modules)
    rows = floors.measure_floors(runtime)
    assert live_allocations() == before and len(runtime.modules) == modules
    named = {row.what: row for row in rows}
    assert len(named) == len(rows) == 18
    for row in rows:
        assert row.us is None or (row.low <= row.us <= row.high), row
    assert named["cuGraphLaunch from Python, host side"].us > 0
    assert named["WHILE node around a body of 60 nodes, an iteration"].us > named["memset node (16 KB)"].us
    text = floors.text("this device", rows)
    assert all(row.what in text for row in rows)
    assert len(json.loads(json.dumps(floors.to_dict("this device", rows)))["floors"]) == 18
