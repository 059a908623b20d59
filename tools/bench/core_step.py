#!/usr/bin/env python3
"""Times the core training step, one cuGraphLaunch a step, on the driver in use.

    python tools/bench/core_step.py --configurations A            medians to stdout, JSON to tools/bench/results/

A, B, C, D are the configurations of tools/bench/README.md: the network and loss of the peers (state 48, branches 5-3-3-3,
51 atoms, loss summed over branches, no gradient budget). Blocks of 100 steps are timed from the first launch to the end of the
last by the host's clock, with one synchronization a block; the median over blocks is reported with p10 and p90. Every block's
time is kept in the JSON.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)
import subjects  # noqa: E402

import foxhunt_rt as fx  # noqa: E402
from foxhunt_rt.dqn.learner import Learner  # noqa: E402

CONFIGURATIONS = {
    "A": ("64,64", 64, 65536),
    "B": ("256,256", 512, 1 << 20),
    "C": ("512,512,256", 4096, 1 << 20),
    "D": ("1024,1024", 16384, 1 << 20),
}


def learner(rt: fx.Runtime, name: str, budget: float, precision: str) -> Learner:
    """The learner of a configuration, its replay filled."""
    hidden, batch, capacity = CONFIGURATIONS[name]
    settings = subjects.config(**{
        "network.hidden": hidden, "replay.batch": batch, "replay.capacity": capacity, "replay.n_step": 1,
        "loss.alpha_c51_start": 1.0, "loss.branch_reduction": "sum", "loss.grad_budget": budget,
        "network.precision": precision, "optim.lr": 1e-3, "optim.lr_min": 1e-3, "optim.tau_start": 0.01, "optim.tau_end": 0.01,
    })  # fmt: skip
    return subjects.learner(rt, settings, subjects.PEER_STATE_DIM, subjects.PEER_BRANCHES, min(capacity, 65536))


def measure(rt: fx.Runtime, name: str, budget: float, blocks: int, block: int, precision: str) -> dict[str, object]:
    hidden, batch, capacity = CONFIGURATIONS[name]
    started = time.perf_counter()
    made = learner(rt, name, budget, precision)
    ready = time.perf_counter() - started
    graph = made.graph
    wall, host = [], []
    with rt.context.current():  # as the training loop does, once
        for _ in range(2 * block):
            graph.launch()
        rt.synchronize()
        for _ in range(blocks):
            t0 = time.perf_counter()
            for _ in range(block):
                graph.launch()
            t1 = time.perf_counter()
            rt.synchronize()
            wall.append((time.perf_counter() - t0) / block * 1e6)
            host.append((t1 - t0) / block * 1e6)
    info = graph.info()
    made.close()
    return {
        "configuration": name, "hidden": [int(n) for n in hidden.split(",")], "batch": batch, "capacity": capacity,
        "precision": precision, "choices": made.choices,
        "grad_budget": budget, "us_median": float(np.median(wall)), "us_p10": float(np.percentile(wall, 10)),
        "us_p90": float(np.percentile(wall, 90)), "host_us_median": float(np.median(host)), "blocks_us": wall,
        "block_steps": block, "nodes": info["nodes"], "longest_chain": info["longest_chain"],
        "chain_by_child": {c["name"]: c["chain"] for c in [*info["children"], *info["epilogue"]]},
        "build_ms": info["build_ms"], "ready_s": ready,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default="A")
    parser.add_argument("--precisions", default="fp32", help="of fp32, tf32, bf16: each is measured")
    parser.add_argument("--blocks", type=int, default=50)
    parser.add_argument("--block", type=int, default=100)
    parser.add_argument("--budget", type=float, default=0.0, help="gradient budget G; 0 as the peers have it")
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    results = []
    for name, precision in itertools.product(args.configurations.split(","), args.precisions.split(",")):
        found = measure(rt, name, args.budget, args.blocks, args.block, precision)
        results.append(found)
        spread = f"p10 {found['us_p10']:.1f}, p90 {found['us_p90']:.1f}"
        print(f"{name} {precision}: {found['us_median']:.1f} us a step ({spread}), host {found['host_us_median']:.1f}, "
              f"longest chain {found['longest_chain']}")  # fmt: skip
    print(record.write(record.begin("core_step", rt, results=results), args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
