"""The assertions of `foxhunt_rt.testing`: each passes on a good step, and fails on a planted fault with what a reader needs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from foxhunt_rt import driver
from foxhunt_rt.driver.tracing import launches, loads, synchronizes, takes_memory
from foxhunt_rt.testing import (
    DriverCalls,
    assert_calls,
    assert_isolated,
    assert_no_allocation,
    assert_no_growth,
    assert_no_sync,
    assert_replay_matches,
)

N = 300


@pytest.fixture
def step(runtime, step_plan):
    """x += 1, then the sum of x."""
    x = runtime.array(np.arange(N, dtype=np.float32), "x")
    total = runtime.zeros(1, np.float32, "total")
    with step_plan.child("increment", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (3,), (128,), dict(x=x, value=1.0, n=N))
    with step_plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (256,), dict(x=x, sum=total, n=N))
    return step_plan.build()


def test_a_good_step_passes(runtime, step):
    assert assert_replay_matches(step, steps=2).bitwise_equal
    assert_isolated(runtime)
    with assert_no_sync(), assert_no_allocation(), assert_calls({"cuGraphLaunch": 5}):
        for _ in range(5):
            step.launch()


def test_a_replay_that_departs_is_shown_with_its_first_difference_and_the_ledger(step):
    """The state hides a buffer that the step reads, so that a run leaves something behind for the next."""
    hidden = next(b for b in step.state.buffers if b.label == "x")
    step.state.buffers.remove(hidden)
    with pytest.raises(AssertionError) as caught:
        assert_replay_matches(step, steps=2)
    text = str(caught.value)
    assert "child by child departs in step 0, child increment: x[0]: 1.0 against 3.0" in text
    assert re.search(r"increment +captured", text)


def test_a_module_that_two_use_is_shown(runtime, step):
    entry = next(e for e in runtime.ledger.entries() if any(c.endswith("/total") for c in e.captured.values()))
    entry.ungraphed["sum"] = "planted"
    try:
        with pytest.raises(
            AssertionError, match=r"/total and launched ungraphed by planted\n(.*\n)?the ledger:\n *module"
        ):
            assert_isolated(runtime)
    finally:
        del entry.ungraphed["sum"]


def refused(block, assertion):
    """The text of the failure that an assertion makes of a block."""

    def run():
        with assertion:
            block()

    with pytest.raises(AssertionError) as caught:
        run()
    return str(caught.value)


def test_a_synchronization_is_shown(runtime, step):
    def block():
        step.launch()
        runtime.synchronize()

    text = refused(block, assert_no_sync(runtime))
    assert text.startswith("synchronizing calls: 1 cuStreamSynchronize: read results from mapped memory")
    assert "all driver calls of the block: " in text and "1 cuGraphLaunch" in text and "the ledger:\nmodule" in text
    with assert_no_allocation():
        block()


def test_an_allocation_is_shown(runtime, step):
    text = refused(lambda: runtime.empty(4, np.float32, "planted").free(), assert_no_allocation())
    assert text.startswith("allocating or loading calls: 1 cuMemAlloc, 1 cuMemFree")
    assert "allocate, load and build before the loop" in text
    assert "cuGraphInstantiate" in refused(
        lambda: step.graphs[0].instantiate(runtime.stream).close(), assert_no_allocation()
    )


def test_one_launch_too_many_or_anything_else_is_shown(runtime, step):
    assert refused(step.launch, assert_calls({"cuGraphLaunch": 2})).startswith("1 cuGraphLaunch, expected 2\n")
    text = refused(step.run_ungraphed, assert_calls({"cuGraphLaunch": 0}))
    assert text.startswith("2 cuLaunchKernel, expected none\n")


@pytest.mark.hostsim
def test_calls_of_others_are_seen(runtime, step):
    """Counted by the driver itself: a library that goes past this package hides nothing."""
    api = driver.load()
    with runtime.context.current():
        with DriverCalls() as calls:
            api.cuCtxSynchronize()
        assert calls.found["cuCtxSynchronize"] == 1 and "cuCtxSynchronize" not in calls.ours
        assert "1 past this package's checked calls" in refused(api.cuCtxSynchronize, assert_no_sync())


def test_a_failure_inside_the_block_is_the_one_that_is_raised(runtime):
    def block():
        runtime.synchronize()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), assert_no_sync():
        block()


def test_python_objects_left_behind_are_shown():
    kept = []
    with assert_no_growth():
        [object() for _ in range(1000)]
    text = refused(lambda: kept.append(bytearray(5000)), assert_no_growth(4000))
    assert re.match(r"5,\d\d\d bytes of Python objects were left behind, at most 4,000", text)
    assert "test_assertions.py" in text


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (synchronizes, "cuMemcpyDtoH cuMemsetD32 cuStreamSynchronize cuMemcpy"),
        (takes_memory, "cuMemAllocAsync cuMemFreeHost cuMemPoolDestroy"),
        (loads, "cuModuleLoadDataEx cuFuncSetAttribute cuCtxSetLimit cuGraphInstantiateWithFlags"),
        (launches, "cuGraphLaunch cuLaunchKernelEx cuMemcpyHtoDAsync cuMemsetD32Async"),
        (None, "cuCtxSetCurrent cuStreamQuery cuGraphExecKernelNodeSetParams cuPointerGetAttribute"),
    ],
)
def test_entry_points_are_put_in_their_place(kind, calls):
    for name in calls.split():
        assert [k for k in (synchronizes, takes_memory, loads, launches) if k(name)] == ([kind] if kind else []), name
