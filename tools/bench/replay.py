"""What sampling and new priorities cost by capacity and batch: python tools/bench/replay.py

Each figure is the median time of one node in a chain of nodes in one graph, so the cost of a dependent node is in it. Every node
draws other rows (its step_block has its own rng_step), so a large ring is read from memory, not from the cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)

from foxhunt_rt.driver import Buffer  # noqa: E402
from foxhunt_rt.graph import Runtime, StepGraph  # noqa: E402
from foxhunt_rt.kernels import abi  # noqa: E402
from foxhunt_rt.replay import Batch, Replay  # noqa: E402

FEATURES, PORTFOLIO, BARS, N_STEP = 60, 4, 60_000, 3


def filled(rt: Runtime, capacity: int, random: np.random.Generator) -> Replay:
    """A full market-mode ring whose priorities differ from row to row."""
    replay = Replay(rt, capacity, FEATURES + PORTFOLIO, mode="market", portfolio_dim=PORTFOLIO, n_step=N_STEP)
    replay.set_feature_table(rt.array(random.normal(size=(BARS, FEATURES)).astype(np.float32), "features"))
    e = min(capacity // 8, 1 << 20)
    staging, none, own = replay.staging(e), np.zeros(e, bool), np.zeros((e, PORTFOLIO))
    for _ in range(capacity // e + 1):
        row, following = random.integers(0, BARS, (2, e))
        replay.insert_batch(staging, np.zeros(e, int), np.zeros(e), none, none, feature_row=row, next_feature_row=following,
                            portfolio=own, next_portfolio=own)  # fmt: skip
    step = step_blocks(rt, 1)
    for first in range(0, capacity, e):  # ascending rows: one update each
        batch = Batch.allocate(rt, min(e, capacity - first), FEATURES + PORTFOLIO)
        batch.index.copy_from(np.arange(first, first + batch.size, dtype=np.int32))
        batch.td_error.copy_from(random.gamma(0.5, size=batch.size).astype(np.float32))
        replay.record_priorities(rt.ungraphed("bench"), batch, step)  # type: ignore[arg-type]
        for buffer in (*batch.sampled, batch.td_error):
            buffer.free()
    return replay


def step_blocks(rt: Runtime, count: int) -> Any:
    blocks = np.zeros(count, abi.dtype("step_block"))
    values = {
        "seed": 5,
        "gamma": 0.99,
        "reward_scale": 1,
        "alpha_per": 0.6,
        "eps_per": 1e-6,
        "min_priority": 0xFFFFFFFF,
    }
    for name, value in values.items():
        blocks[name] = value
    blocks["rng_step"] = np.arange(count)
    return rt.array(blocks, "steps")


def node_us(rt: Runtime, graph: StepGraph, nodes: int) -> list[float]:
    for _ in range(2):
        graph.launch()
    rt.synchronize()
    samples = []
    for _ in range(9):
        start = time.perf_counter()
        graph.launch()
        rt.synchronize()
        samples.append((time.perf_counter() - start) / nodes * 1e6)
    graph.close()
    return samples


def chain(rt: Runtime, name: str, nodes: int, reads: list[Buffer], writes: list[Buffer], record: Any) -> list[float]:
    plan = rt.plan(name)
    with plan.child(name, reads=reads, writes=writes) as child:
        for i in range(nodes):
            record(child, i)
    return node_us(rt, plan.build(ungraphed=False), nodes)


def measure(
    rt: Runtime, replay: Replay, size: int, nodes: int, random: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Samples of per_sample and of per_priority, us a node."""
    batch, steps = Batch.allocate(rt, size, replay.state_dim), step_blocks(rt, nodes)
    batch.td_error.copy_from(random.gamma(1.0, size=size).astype(np.float32))
    sample = chain(rt, "per_sample", nodes, [*replay.sample_reads], [steps, *batch.sampled],
                   lambda child, i: replay.record_sample(child, batch, steps[i : i + 1]))  # fmt: skip
    update = chain(rt, "per_priority", nodes, [batch.index, batch.td_error, steps], [*replay.priority_writes],
                   lambda child, i: replay.record_priorities(child, batch, steps[i : i + 1]))  # fmt: skip
    return sample, update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    record.add_out(parser)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--capacities", type=int, nargs="+", default=[1 << 16, 1 << 20, 1 << 24])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512, 4096])
    args = parser.parse_args()
    rt, random, results = Runtime(), np.random.default_rng(0), []
    print(f"driver: {rt.driver_kind}; us a node, median of 9")
    for capacity in args.capacities:
        replay = filled(rt, capacity, random)
        for size in args.batches:
            sample, update = measure(rt, replay, size, args.nodes, random)
            print(f"capacity {capacity:10,}  batch {size:6,}  per_sample {np.median(sample):7.2f}  "
                  f"per_priority {np.median(update):7.2f}")  # fmt: skip
            results.append({"capacity": capacity, "batch": size, "per_sample_us": sample, "per_priority_us": update})
    print(record.write(record.begin("replay", rt, nodes=args.nodes, results=results), args.out))


if __name__ == "__main__":
    main()
