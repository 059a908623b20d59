#!/usr/bin/env python3
"""What each launch of the core step costs as a dependent node of a graph.

    python tools/bench/launch_times.py --configurations A,B

For every recorded launch: a graph of REPEATS copies of it in a chain, replayed; the time of one copy, the gap to its
predecessor (about 1 us on an H200) included. The sum over the longest chain predicts the step; a launch far above the others is
the one to look at.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import core_step

import foxhunt_rt as fx
from foxhunt_rt.driver import Stream, capture
from foxhunt_rt.graph import StepGraph
from foxhunt_rt.graph.child import KernelOp

REPEATS = 50
ROUNDS = 11


def launch_times(step: StepGraph) -> list[dict[str, object]]:
    """Microseconds of each launch, in program order, median over `ROUNDS` replays of `REPEATS` copies."""
    context, rows = step.runtime.context, []
    assert step._ungraphed is not None
    for child, functions in zip(step.children, step._ungraphed, strict=True):
        for op in child.ops:
            with context.current(), Stream(context) as stream:
                with capture(stream) as recording:
                    for _ in range(REPEATS):
                        op.issue(context, stream, functions)
                executable = recording.graph.instantiate(stream)
                executable.upload(stream)
                samples = []
                for _ in range(ROUNDS):
                    stream.synchronize()
                    started = time.perf_counter()
                    executable.launch(stream)
                    stream.synchronize()
                    samples.append((time.perf_counter() - started) / REPEATS * 1e6)
                executable.close()
            name = op.kernel if isinstance(op, KernelOp) else type(op).__name__
            shape = f"{op.grid} {op.block}" if isinstance(op, KernelOp) else ""
            rows.append({"child": child.name, "launch": name, "shape": shape, "us": sorted(samples)[ROUNDS // 2]})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default="A")
    parser.add_argument("--budget", type=float, default=0.0)
    args = parser.parse_args()
    rt = fx.Runtime()
    for name in args.configurations.split(","):
        learner = core_step.learner(rt, name, args.budget)
        rows = launch_times(learner.graph)
        for row in rows:
            print(f"{name} {row['child']:<14} {row['launch']:<18} {row['us']:8.2f} us  {row['shape']}")
        print(json.dumps({"configuration": name, "sum_us": sum(float(str(r["us"])) for r in rows)}))
        learner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
