"""Where the time of a training step goes, and why it is slow where it is.

Times each child in an instrumented twin of the step and each launch in a graph that repeats it, on simulated bars, then
looks for the known causes: a hidden synchronization, launches outside the parent, a serial reduction, local-memory spills,
an allocation per step, a throttled clock. `--plant CAUSE` puts one into the loop, to show what it looks like. The tables
are explained in docs/timing.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foxhunt_rt.cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.telemetry.nvml import GpuState

WARM_STEPS = 4
PLANTS = ("synchronization", "launch", "allocation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, what else to write, and what to plant."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps to time (default: %(default)s)")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write Chrome trace JSON, for ui.perfetto.dev")
    parser.add_argument("--no-launches", action="store_true", help="time children only")
    parser.add_argument("--nvtx", action="store_true", help="NVTX ranges around each child's ungraphed launches")
    parser.add_argument("--plant", choices=PLANTS, help="put a known cause into the loop: it must be named")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fills a replay, trains a few steps, profiles, explains."""
    from foxhunt_rt.cli.options import configuration
    from foxhunt_rt.cli.small_world import small_world
    from foxhunt_rt.graph import Runtime, explain
    from foxhunt_rt.market.walks import split_window
    from foxhunt_rt.telemetry import nvtx

    if args.steps < 1:
        raise UsageError(f"--steps {args.steps}: give at least 1")
    ranges = nvtx.ranges() if args.nvtx else None
    config = configuration(args)
    with Runtime() as rt:
        world = small_world(rt, config)
        learner, fold = world.learner, world.folds[0]
        world.enter(fold, config.train.seed)
        world.collector.policy.set_exploration(1.0)
        world.collector.begin(split_window(world.ends, *fold.train, config.market.environments))
        world.collector.finish()
        for _ in range(WARM_STEPS):
            learner.step()
        learner.drain()
        found = learner.graph.profile(args.steps, launches=not args.no_launches, ranges=ranges)
        readings, why = gpu_states(rt, learner.step, args.steps)
        learner.drain()
        findings = explain(rt, found, planted(rt, learner.step, args.plant), clocks=readings)
        learner.drain()
        last = learner.timer.last
        print(found.text())
        print(last if last is not None else "no step was logged")
        print(readings[-1] if readings else f"GPU state: {why}")
        for finding in findings:
            print(f"! {finding}")
        if not findings:
            print("none of the known causes of a slow step was found")
        if args.trace is not None:
            args.trace.write_text(json.dumps(found.trace()) + "\n")
            print(f"trace: {args.trace}; open it at ui.perfetto.dev")
        if args.json:
            print(json.dumps({"status": "ok", "driver": rt.driver_kind, "device": rt.device.name, "planted": args.plant,
                              "profile": found.to_dict(), "findings": [f.to_dict() for f in findings],
                              "gpu": [r.to_dict() for r in readings]}))  # fmt: skip
        world.close()
    return int(ExitCode.OK)


def planted(rt: Runtime, step: Callable[[], object], cause: str | None) -> Callable[[], object]:
    """One turn of the loop, with a cause put in."""
    if cause is None:
        return step

    def turn() -> None:
        step()
        if cause == "synchronization":
            rt.synchronize()
        elif cause == "launch":
            rt.ungraphed("planted").launch("empty", (1,), (32,), dict(unused=0))
        else:
            rt.empty(1024, "f4", "planted").free()

    return turn


def gpu_states(rt: Runtime, step: Callable[[], object], steps: int) -> tuple[list[GpuState], str]:
    """Readings of NVML while steps run; or none, and why."""
    from foxhunt_rt.telemetry.nvml import NvmlUnavailable, opened

    if rt.driver_kind != "cuda":
        return [], "hostsim has no clocks that could be throttled"
    readings: list[Any] = []
    try:
        with opened(rt.device.uuid) as nvml:
            for _ in range(3):
                for _ in range(max(steps, 50)):
                    step()
                readings.append(nvml.read())
    except NvmlUnavailable as error:
        return [], str(error)
    return readings, ""
