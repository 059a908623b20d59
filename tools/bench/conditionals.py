"""What conditional nodes cost: python tools/bench/conditionals.py

A chain of tiny kernels, plain, behind IF nodes (taken and not, alone, two in series, two that share one) and inside a WHILE
node; then the core training step with 1, 8 and 32 steps a launch; and the host's side: a launch, a slot update. Medians in
microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)

import foxhunt_rt as fx  # noqa: E402
from foxhunt_rt.config import Config  # noqa: E402
from foxhunt_rt.driver import Event  # noqa: E402
from foxhunt_rt.graph import Flag, Slot, StepGraph  # noqa: E402

CHAIN, ROUNDS, LAUNCHES = 20, 15, 50


def device_us(rt: fx.Runtime, launch: Callable[[], object], steps: int) -> float:
    """Time of one step by events around LAUNCHES launches."""
    start, end = Event(rt.context), Event(rt.context)
    samples = []
    for _ in range(ROUNDS):
        start.record(rt.stream)
        for _ in range(LAUNCHES):
            launch()
        end.record(rt.stream)
        end.synchronize()
        samples.append(end.elapsed_ms(start) * 1e3 / LAUNCHES / steps)
    return statistics.median(samples)


def host_us(rt: fx.Runtime, call: Callable[[], object]) -> float:
    """Host time of one call; the device is drained every 20 calls."""
    samples = []
    for n in range(400):
        start = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - start) / 1e3)
        if n % 20 == 19:
            rt.synchronize()
    return statistics.median(samples)


def chain(rt: fx.Runtime, gates: list[Flag | None], k: int = 1) -> StepGraph:
    """CHAIN dependent kernels, then one child of one kernel for each gate."""
    x = rt.zeros(1024, np.float32, "x")
    plan = rt.plan("chain")

    def add(child: fx.graph.Child, value: object = 1.0) -> None:
        child.launch("copy_element", (4,), (256,), {"x": x, "y": x, "from": 0, "to": 0, "value": value})

    with plan.child("chain", reads=[], writes=[x]) as c:
        for _ in range(CHAIN):
            add(c, Slot(1.0))
    for i, gate in enumerate(gates):
        with plan.child(f"gated{i}", reads=[], writes=[x], when=gate) as c:
            add(c)
    return plan.build(steps_per_launch=k)


def measure(rt: fx.Runtime) -> dict[str, float]:
    word, other = rt.zeros(1, np.uint32, "word"), rt.zeros(1, np.uint32, "other")
    found: dict[str, float] = {}
    cases: list[tuple[str, list[Flag | None]]] = [
        ("no gate", []), ("one more kernel", [None]), ("one IF", [Flag(word)]),
        ("two IF in series", [Flag(word), Flag(other)]), ("two that share one IF", [Flag(word), Flag(word)])]  # fmt: skip
    for name, gates in cases:
        step = chain(rt, gates)
        for taken in (0, 1) if any(gates) else (0,):
            for flag in (word, other):
                flag.fill(taken)
            key = name if not any(gates) else f"{name}, {'taken' if taken else 'not taken'}"
            found[key] = device_us(rt, step.launch, 1)
        step.close()
    for k in (8, 32):
        step = chain(rt, [], k)
        found[f"no gate, {k} steps a launch"] = device_us(rt, step.launch, k)
        step.close()
    step = chain(rt, [])
    found["host: launch"] = host_us(rt, step.launch)
    found["host: set one slot"] = host_us(rt, lambda: step.set("chain", "copy_element", 0, value=2.0))
    stream = fx.driver.Stream(rt.context)
    found["host: launch in the order of another stream"] = host_us(rt, lambda: step.launch(stream=stream))
    step.close()
    found |= core_step(rt)
    return found


def core_step(rt: fx.Runtime) -> dict[str, float]:
    """The training step of shape A."""
    found = {}
    for k in (1, 8, 32):
        config = Config().with_set(["network.hidden=64,64", "replay.batch=64", "replay.capacity=65536",
                                    f"train.steps_per_launch={k}", "loss.grad_budget=0"])  # fmt: skip
        learner = fx.dqn.Learner(rt, config, 48, (5, 3, 3, 3))
        staging, random = learner.replay.staging(64), np.random.default_rng(0)
        for _ in range(32):
            a, b = (random.normal(size=(64, 48)).astype(np.float32) for _ in range(2))
            learner.replay.insert_batch(staging, random.integers(0, 135, 64), random.normal(size=64), np.zeros(64, bool),
                                        np.zeros(64, bool), state=a, next_state=b)  # fmt: skip
        found[f"core step A, {k} a launch"] = device_us(rt, learner.graph.launch, k)
        learner.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    found = measure(rt)
    for name, value in found.items():
        print(f"{name:<48} {value:9.2f} us")
    print(record.write(record.begin("conditionals", rt, us=found), args.out))


if __name__ == "__main__":
    main()
