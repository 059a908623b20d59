"""Known failure K1, "why is my step slow?": each cause is planted and must be named; a clean loop has no finding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from foxhunt_rt.driver import PLUMBING, DriverCalls, Function
from foxhunt_rt.graph import explain
from foxhunt_rt.graph.explain import of_calls, of_clocks, of_launches, waits_for_device
from foxhunt_rt.graph.profile import LaunchTime, Profile

N = 1 << 16


@pytest.fixture
def step(runtime):
    """x += 1 over many threads."""
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("healthy")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (N // 256,), (256,), dict(x=x, value=1.0, n=N))
    step = plan.build()
    yield step
    step.close()


def causes(runtime, step, loop, **options) -> list[str]:
    return [f.cause for f in explain(runtime, step.profile(2), loop, turns=5, **options)]


def test_a_clean_loop_has_no_finding(runtime, step):
    assert causes(runtime, step, step.launch) == []


def test_a_hidden_synchronization_is_named(runtime, step):
    x = runtime.zeros(4, np.float32, "other")

    def turn():
        step.launch()
        x.to_numpy()  # what item() or print does

    (finding, *_) = explain(runtime, step.profile(1), turn, turns=5)
    assert finding.cause == "hidden synchronization"
    assert "1 cuStreamSynchronize a step" in finding.evidence


def test_launches_outside_the_parent_are_named(runtime, step):
    def turn():
        step.launch()
        runtime.ungraphed("outside").launch("empty", (1,), (32,), dict(unused=0))

    (finding,) = explain(runtime, step.profile(1), turn, turns=5)
    assert finding.cause == "launches outside the parent"
    assert "1 cuLaunchKernel a step" in finding.evidence


def test_a_second_graph_launch_is_outside_too(runtime, step):
    def turn():
        step.launch()
        step.launch()

    (finding,) = explain(runtime, step.profile(1), turn, turns=5)
    assert finding.cause == "launches outside the parent" and "2 cuGraphLaunch" in finding.evidence
    assert causes(runtime, step, turn, launches_per_turn=2) == []


def test_an_allocation_per_step_is_named(runtime, step):
    def turn():
        step.launch()
        runtime.empty(1024, np.float32, "scratch").free()

    found = explain(runtime, step.profile(1), turn, turns=5)
    allocation = next(f for f in found if f.cause == "allocation per step")
    assert allocation.evidence == "1 cuMemAlloc, 1 cuMemFree a step"


def test_loading_per_step_is_named(runtime, step):
    function = next(iter(step._functions[0].values()))

    def turn():
        step.launch()
        with runtime.context.current():
            function.attribute("NUM_REGS")

    (finding,) = explain(runtime, step.profile(1), turn, turns=5)
    assert finding.cause == "loading or setting per step" and "cuFuncGetAttribute" in finding.evidence


def test_a_serial_reduction_is_named(runtime):
    """One warp that adds up 65,536 numbers, beside a child that is as it should be."""
    x, total = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("serial")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (N // 256,), (256,), dict(x=x, value=1.0, n=N))
    with plan.child("norm", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (32,), dict(x=x, sum=total, n=N))
    step = plan.build()
    (finding,) = explain(runtime, step.profile(1))
    assert (finding.cause, finding.where) == ("serial reduction", "norm.sum")
    assert "32 threads" in finding.evidence
    step.close()


def walking(runtime):
    x, y = runtime.zeros(7, np.float32, "x"), runtime.zeros(1, np.float32, "y")
    plan = runtime.plan("walks")
    with plan.child("walk", reads=[x], writes=[y]) as c:
        c.launch("walk_stack", (4,), (128,), dict(x=x, y=y, n=7, rounds=8))
    return plan.build()


@pytest.mark.hostsim
def test_a_spill_is_named(runtime, step, monkeypatch):
    """hostsim's kernels are C++ functions and have no local memory to report, so the attribute is planted."""
    honest = Function.attribute
    monkeypatch.setattr(
        Function, "attribute", lambda self, name: 96 if name == "LOCAL_SIZE_BYTES" else honest(self, name)
    )
    (finding,) = explain(runtime, step.profile(1))
    assert (finding.cause, finding.where) == ("local-memory spill", "add.add_scalar")
    assert "96 bytes" in finding.evidence


@pytest.mark.gpu
def test_local_memory_is_named_on_a_gpu(runtime):
    step = walking(runtime)
    found = [f for f in explain(runtime, step.profile(1)) if f.cause == "local-memory spill"]
    assert [f.where for f in found] == ["walk.walk_stack"]
    assert "3,840 bytes" in found[0].evidence
    step.close()


def test_a_slow_rate_is_serial_on_a_gpu_only():
    """A block of 256 threads of which one does the work: only the time shows it."""
    row = LaunchTime("norm", "sum", (1,), (256,), 400.0, 410.0, 65_536, 0)
    fast = replace(row, launch="fast", median_us=3.0, p90_us=3.0)
    profile = Profile("p", "d", "cuda", 1, 1, 1, 1, 1, 1, 1, 1, 1, [], [row, fast])
    assert [f.where for f in of_launches(profile, on_gpu=True)] == ["norm.sum"]
    assert of_launches(profile, on_gpu=False) == []


@dataclass
class Clock:
    sm_mhz: int
    sm_max_mhz: int
    throttled: tuple[str, ...] = ()


def test_a_throttled_clock_is_named(runtime, step):
    hot = Clock(1410, 1980, ("hardware thermal slowdown",))
    (finding,) = explain(runtime, step.profile(1), clocks=[Clock(1980, 1980), hot])
    assert finding.cause == "throttled clock"
    assert "1410 of 1980 MHz" in finding.evidence and "hardware thermal slowdown" in finding.evidence
    assert of_clocks([Clock(1980, 1980), Clock(1900, 1980)]) == [] == of_clocks([])
    assert of_clocks([Clock(900, 1980)])[0].cause == "throttled clock"  # a clock that someone set low


def test_a_wait_is_found_by_a_delay_whoever_makes_the_call(runtime, step):
    """The call goes round this package: only the time tells."""
    cu = runtime.context.cu

    def hidden():
        step.launch()
        with runtime.context.current():
            cu.cuStreamSynchronize(runtime.stream.handle)

    assert waits_for_device(runtime, hidden, delay_ms=20) > 0.5
    assert waits_for_device(runtime, step.launch, delay_ms=20) < 0.5


@pytest.mark.hostsim
def test_under_hostsim_the_driver_counts(runtime, step):
    """Calls that go round this package are seen too."""
    cu = runtime.context.cu
    with runtime.context.current(), DriverCalls() as trace:
        step.launch()
        cu.cuStreamSynchronize(runtime.stream.handle)
    assert {n: c for n, c in trace.found.items() if n not in PLUMBING} == {"cuGraphLaunch": 1, "cuStreamSynchronize": 1}


def test_findings_are_lines_that_end_with_the_mend():
    (finding,) = of_calls({"cuGraphLaunch": 10, "cuMemFree": 20}, 10)
    assert str(finding) == ("allocation per step: the loop: 2 cuMemFree a step; allocate before the loop: a free waits for the "
                            "device")  # fmt: skip
    assert finding.to_dict()["cause"] == "allocation per step"
