#!/usr/bin/env python3
"""Host time of a launch: what `StepGraph.launch` and `Learner.step` add to cuda-python's `cuGraphLaunch`.

    python tools/bench/launch_cost.py                percentiles to stdout, JSON to tools/bench/results/

Every launch is timed by itself, in microseconds, with the clock's own cost (printed) in both columns. Batches of raw and of
wrapped launches of one executable take turns in one run; the device is drained between batches, so that its queue is never full.
The graph is one tiny kernel, except for the learner's.

    plain               StepGraph.launch(), the runtime's context current, against cuGraphLaunch
    no context          the same from a thread in which no context is current: the wrapper makes it current and takes it away
    8 steps a launch    a graph with a WHILE node
    Learner.step        the launch, and reading the one record that has come since; against cuGraphLaunch of the same graph.
                        `launch` in the JSON is the part of it inside StepGraph.launch
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)
import subjects  # noqa: E402

import foxhunt_rt as fx  # noqa: E402
from foxhunt_rt.graph import StepGraph  # noqa: E402

BATCH = 200
PERCENTILES = (1, 10, 50, 90, 99, 99.9)
LIMIT_US = 1.5  # of the wrapper, median: docs/timing.md


def timed(call: Callable[[], object], samples: list[int], times: int) -> None:
    """Nanoseconds of each call."""
    clock = time.perf_counter_ns
    for _ in range(times):
        started = clock()
        call()
        samples.append(clock() - started)


def summary(samples: Sequence[int]) -> dict[str, float]:
    """Percentiles, mean and largest of samples in nanoseconds, in microseconds."""
    us = np.asarray(samples) / 1e3
    return {**{f"p{q:g}": float(v) for q, v in zip(PERCENTILES, np.percentile(us, PERCENTILES), strict=True)},
            "mean": float(us.mean()), "max": float(us.max()), "n": len(us)}  # fmt: skip


def compared(raw: list[int], wrapped: list[int]) -> dict[str, Any]:
    """Both columns, and the difference of their medians."""
    a, b = summary(raw), summary(wrapped)
    return {"raw_us": a, "wrapped_us": b, "added_us": b["p50"] - a["p50"]}


def raw_launch(step: StepGraph) -> Callable[[], object]:
    """cuda-python's cuGraphLaunch, its status looked at by nobody."""
    launch, executable, stream = (
        step.runtime.context.cu.cuGraphLaunch,
        step.executable.handle,
        step.runtime.stream.handle,
    )
    return lambda: launch(executable, stream)


def tiny(rt: fx.Runtime, steps_per_launch: int) -> StepGraph:
    """One kernel of one block."""
    x = rt.zeros(32, np.float32, "x")
    plan = rt.plan("tiny")
    with plan.child("add", reads=[], writes=[x]) as child:
        child.launch("add_scalar", (1,), (32,), {"x": x, "value": 1.0, "n": 32})
    return plan.build(steps_per_launch=steps_per_launch)


def launches(rt: fx.Runtime, count: int, *, steps_per_launch: int, current: bool = True) -> dict[str, Any]:
    """`StepGraph.launch` against the raw call, ``count`` of each."""
    step, raw, wrapped = tiny(rt, steps_per_launch), [], []
    direct, batch = raw_launch(step), BATCH // steps_per_launch
    for n in range(-3, count // batch):  # the first three warm up
        if n == 0:
            raw, wrapped = [], []
        with rt.context.current():
            timed(direct, raw, batch)
            rt.synchronize()
            if current:
                timed(step.launch, wrapped, batch)
        if not current:
            timed(step.launch, wrapped, batch)
        rt.synchronize()
    step.close()
    return compared(raw, wrapped)


def learner_steps(rt: fx.Runtime, count: int, steps_per_launch: int) -> dict[str, Any]:
    """`Learner.step` with the record of one launch waiting to be read, against the raw launch of its graph."""
    settings = subjects.config(**{"network.hidden": "64,64", "replay.batch": 64, "replay.capacity": 4096,
                                  "train.steps_per_launch": steps_per_launch})  # fmt: skip
    learner = subjects.learner(rt, settings, subjects.PEER_STATE_DIM, subjects.PEER_BRANCHES, 4096)
    raw: list[int] = []
    wrapped: list[int] = []
    inside: list[int] = []
    direct = raw_launch(learner.graph)
    with rt.context.current():
        for n in range(-20, count):
            if n == 0:
                raw, wrapped, inside = [], [], []
            timed(direct, raw, 1)
            rt.synchronize()
            timed(learner.step, wrapped, 1)  # reads the record of the raw launch
            inside.append(learner.graph.launch_ns)
            rt.synchronize()
            learner.records.poll(learner._deliver)
            if n % 100 == 0:
                learner.take()
    learner.close()
    return {**compared(raw, wrapped), "launch_us": summary(inside)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10_000, help="of Learner.step")
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    clock: list[int] = []
    timed(lambda: None, clock, args.launches)
    results: dict[str, Any] = {
        "plain": launches(rt, args.launches, steps_per_launch=1),
        "no context": launches(rt, args.launches, steps_per_launch=1, current=False),
        "8 steps a launch": launches(rt, args.launches // 4, steps_per_launch=8),
        "Learner.step": learner_steps(rt, args.steps, 1),
        "Learner.step, 8 steps a launch": learner_steps(rt, args.steps // 8, 8),
    }
    print(f"the clock and an empty call: {summary(clock)['p50']:.3f} us")
    print(f"{'':<32} {'raw p50':>8} {'p99':>7} {'wrapped p50':>12} {'p99':>7} {'added':>7}")
    for name, r in results.items():
        a, b = r["raw_us"], r["wrapped_us"]
        print(f"{name:<32} {a['p50']:8.2f} {a['p99']:7.2f} {b['p50']:12.2f} {b['p99']:7.2f} {r['added_us']:7.2f}")
    done = record.begin("launch_cost", rt, clock_us=summary(clock), results=results)
    print(record.write(done, args.out))
    return 0 if results["plain"]["added_us"] <= LIMIT_US or rt.driver_kind != "cuda" else 1


if __name__ == "__main__":
    sys.exit(main())
