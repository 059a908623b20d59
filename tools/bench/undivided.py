#!/usr/bin/env python3
"""What it is worth that a child may be made of parts: the step with every feature on, against the same launches with one graph
child for each child.

    python tools/bench/undivided.py [--steps N] [--rounds N] [--trunk W,W] [--drawn B]

In the undivided plan a child's launches stand in one chain, and its reads and writes are those of all its parts. A part that goes
by a flag stays behind an IF node, at the place of its child. Both plans take turns; a step's time is that of the device, back to
back.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)
import subjects  # noqa: E402

import foxhunt_rt as fx  # noqa: E402
from foxhunt_rt.config import Config  # noqa: E402
from foxhunt_rt.graph import StepGraph, StepPlan, outline  # noqa: E402


def undivided(rt: fx.Runtime, plan: StepPlan) -> StepGraph:
    """The same launches, those of a child in one graph child."""
    made = rt.plan("undivided")
    for name, positions in outline.arrange([c.name for c in plan.children], plan.outline):
        parts = [plan.children[j] for j in positions]
        for when in dict.fromkeys(part.when for part in parts):
            own = [part for part in parts if part.when == when]
            reads, writes, private, scratch = (
                [b for part in own for b in getattr(part, kind)] for kind in ("reads", "writes", "private", "scratch")
            )
            with made.child(name if when is None else f"{name}_gated", reads, writes, private, when, scratch) as child:
                child.ops += [op for part in own for op in part.ops]
    assert plan.tail is not None
    with made.epilogue(plan.tail.name, plan.tail.reads, plan.tail.writes, plan.tail.private) as child:
        child.ops += plan.tail.ops
    return made.build(ungraphed=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trunk", default="64,64", help="widths of its layers")
    parser.add_argument("--drawn", type=int, default=64, help="rows of a batch")
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    config = Config.profile("full").with_set([f"network.hidden={args.trunk}", f"replay.batch={args.drawn}",
                                              "replay.capacity=16384", f"optim.horizon={1 << 30}", "her.achieved_column=0",
                                              "her.goal_column=1"])  # fmt: skip
    learner = subjects.learner(rt, config, subjects.PEER_STATE_DIM, subjects.PEER_BRANCHES, 8192)
    arms = {"parts": learner.graph, "undivided": undivided(rt, learner.graph.plan)}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(args.rounds + 1):  # the first is for warming up
        for name, graph in arms.items():
            rt.synchronize()
            started = time.perf_counter()
            for _ in range(args.steps):
                graph.launch()
            rt.synchronize()
            if turn:
                found[name].append((time.perf_counter() - started) / args.steps * 1e6)
    print(f"{rt.device.name}: trunk {args.trunk}, batch {args.drawn}, {args.rounds} rounds of {args.steps} steps")
    for name, graph in arms.items():
        info, us = graph.info(), found[name]
        print(f"{name:10} {len(graph.plan.children):3d} graph children, {info['nodes']} nodes, longest chain "
              f"{info['longest_chain']}, {np.median(us):8.2f} us a step ({min(us):.2f} to {max(us):.2f})")  # fmt: skip
    print(record.write(record.begin("undivided", rt, trunk=args.trunk, drawn=args.drawn, us=found), args.out))
    arms["undivided"].close()
    learner.close()


if __name__ == "__main__":
    main()
