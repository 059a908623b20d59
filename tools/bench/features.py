#!/usr/bin/env python3
"""What each feature of the step adds to it: device time of a step by its own clock, features one by one against the core.

    python tools/bench/features.py [--steps N] [--rounds N] [--trunk W,W] [--drawn B] [name ...]

Each arm is a learner of its own; arms take turns in rounds, so that a drift of the clocks falls on all. A step's time is from
its first kernel's clock to its last's (`started_ns`, `ended_ns` of the record). Steps on which periodic work is due have a
column of their own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)
import subjects  # noqa: E402

import foxhunt_rt as fx  # noqa: E402
from foxhunt_rt.config import Config  # noqa: E402
from foxhunt_rt.dqn.features import FEATURES  # noqa: E402

NEVER = 1 << 29
#: Settings, and the period of what is then due.
ARMS: dict[str, tuple[dict[str, object], int]] = {
    "core": ({}, NEVER),
    "spectral": ({"spectral.enabled": True}, NEVER),
    "vaccine, never due": ({"vaccine.enabled": True, "vaccine.period": NEVER}, NEVER),
    "vaccine": ({"vaccine.enabled": True}, 10),
    "causal, never due": ({"causal.enabled": True, "causal.period": NEVER}, NEVER),
    "causal": ({"causal.enabled": True}, 50),
    "horizons": ({"horizons.enabled": True}, NEVER),
    "horizons, no shaping": ({"horizons.enabled": True, "horizons.bound": 0.0}, NEVER),
    "plan": ({"plan.enabled": True}, NEVER),
    "temporal": ({"temporal.enabled": True}, NEVER),
    "attention": ({"attention.enabled": True}, NEVER),
    "temporal and attention": ({"temporal.enabled": True, "attention.enabled": True}, NEVER),
    "residual": ({"network.residual": True}, NEVER),
    "depth": ({"network.residual": True, "depth.enabled": True}, NEVER),
    "isv": ({"isv.enabled": True}, NEVER),
    "prune, nothing pruned": ({"prune.enabled": True}, NEVER),
    "homeostat": ({"epoch.enabled": True, "homeostat.enabled": True}, NEVER),
    "her": ({"her.enabled": True, "her.achieved_column": 0, "her.goal_column": 1}, NEVER),
    "denoise": ({"denoise.enabled": True}, NEVER),
    "ensemble": ({"ensemble.enabled": True}, NEVER),
}


def full() -> dict[str, object]:
    """What the profile of this name switches on, without its sizes."""
    before = {name: value for name, _, value, _ in Config().options()}
    changed = {name: value for name, _, value, _ in Config.profile("full").options() if value != before[name]}
    sections = {name for name, _ in FEATURES}
    on = {name: value for name, value in changed.items() if name.split(".")[0] in sections}
    return {**on, "network.residual": True, "her.achieved_column": 0, "her.goal_column": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trunk", default="64,64", help="widths of its layers")
    parser.add_argument("--drawn", type=int, default=64, help="rows of a batch")
    parser.add_argument("arms", nargs="*", help=f"of {', '.join(ARMS)}, full; default: all")
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    arms = {}
    known = ARMS | {"full": (full(), NEVER)}
    if unknown := [name for name in args.arms if name not in known]:
        parser.error(f"{unknown[0]} is no arm; choose of {', '.join(known)}")
    for name in args.arms or known:
        settings, period = known[name]
        config = subjects.config(**{"network.hidden": args.trunk, "replay.batch": args.drawn, "replay.capacity": 16384,
                                    "optim.horizon": 1 << 30, **settings})  # fmt: skip
        made = subjects.learner(rt, config, subjects.PEER_STATE_DIM, subjects.PEER_BRANCHES, 8192)
        arms[name] = (made, period, [])
    for turn in range(args.rounds + 1):  # the first is for warming up
        for made, _, found in arms.values():
            for _ in range(args.steps):
                made.step()
            records = made.drain()
            if turn:
                found.append(records)
    print(
        f"{rt.device.name}: trunk {args.trunk}, batch {args.drawn}, {args.rounds} rounds of {args.steps} steps; us a step"
    )
    print(f"{'arm':24} {'nodes':>5} {'p50':>8} {'p90':>8} {'mean':>8} {'due p50':>8} {'to core':>8}")
    core = None
    results = []
    for name, (made, period, found) in arms.items():
        records = np.concatenate(found)
        us = (records["ended_ns"] - records["started_ns"]).astype(np.float64) / 1e3
        due = records["step"] % period == 0
        core = us.mean() if core is None else core
        shown = f"{np.median(us[due]):8.2f}" if due.any() else f"{'-':>8}"
        print(f"{name:24} {made.graph.info()['nodes']:5d} {np.median(us):8.2f} {np.percentile(us, 90):8.2f} {us.mean():8.2f} "
              f"{shown} {us.mean() - core:+8.2f}")  # fmt: skip
        results.append({"arm": name, "nodes": made.graph.info()["nodes"], "us_p50": float(np.median(us)),
                        "us_p90": float(np.percentile(us, 90)), "us_mean": float(us.mean()),
                        "due_us_p50": float(np.median(us[due])) if due.any() else None})  # fmt: skip
        made.close()
    print(record.write(record.begin("features", rt, trunk=args.trunk, drawn=args.drawn, results=results), args.out))


if __name__ == "__main__":
    main()
