#!/usr/bin/env python3
"""What training earns on the market of known optimum, over seeds: with `core`, with each feature of the step, and on noise.

    python tools/bench/learning.py [--seeds 0-4] [--jobs N] [--set section.key=value ...] [arm ...]

An arm is `core`, the name of a feature's section or of what collection adds (that switched on alone), `full` (all that the
profile `full` has on) or `noise` (core where nothing can be earned). Prints mean, spread and every seed; JSON to
tools/bench/results/, written anew after every training. The settings and the judgement are those of
tests/train/test_known_optimum.py. Runs are processes of their own, `--jobs` side by side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(HERE)]

import record  # noqa: E402 (the folders of the tree come first)

from foxhunt_rt.config import Config  # noqa: E402
from foxhunt_rt.dqn.features import FEATURES  # noqa: E402

COLLECTION = ("market.counterfactual", "market.mirror")
ARMS = ("core", *(name for name, _ in FEATURES), *COLLECTION, "full", "noise")


#: What an arm cannot do without.
NEEDED = {
    "depth": ["network.residual=true"],
    "adaptive_gamma": ["epoch.enabled=true", "loss.gamma=0.95"],  # 0.99, that of core, is the most it may become
    "homeostat": ["epoch.enabled=true"],
}


def settings(arm: str) -> list[str]:
    """Assignments that make an arm of the configuration of `core`."""
    if arm in ("core", "noise"):
        return []
    full = Config.profile("full")
    on = [*(name for name, _ in FEATURES if getattr(full, name).enabled), *COLLECTION] if arm == "full" else [arm]
    needed = dict.fromkeys(assignment for name in on for assignment in NEEDED.get(name, []))
    return [*needed, *(f"{name}.enabled=true" for name in on)]


def one(arm: str, seed: int, assignments: Sequence[str]) -> dict[str, Any]:
    """One training, in this process."""
    import foxhunt_rt as fx
    from tests.train import test_known_optimum as proof

    config = proof.CONFIG.with_set([*settings(arm), *assignments])
    began = time.perf_counter()
    with fx.Runtime() as rt:
        found = (proof.train_on_noise if arm == "noise" else proof.train)(rt, seed, config)
        where = {"driver": rt.driver_kind, "device": rt.device.name}
    return {"arm": arm, **found, "seconds": time.perf_counter() - began, **where}


def started(arm: str, seed: int, assignments: Sequence[str]) -> dict[str, Any]:
    """The same in a process of its own; what went wrong there stands in place of the result."""
    command = [sys.executable, __file__, "--one", arm, "--seeds", str(seed), *(f"--set={a}" for a in assignments)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        return {"arm": arm, "seed": seed, "error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def seeds_of(text: str) -> list[int]:
    """``0-4`` or ``0,3``."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(s) for s in text.split(",")]


def show(found: Sequence[dict[str, Any]]) -> None:
    """A line an arm; differences are to core, seed by seed."""
    by = {(f["arm"], f["seed"]): f for f in found if "error" not in f}
    print(f"{'arm':14} {'share of the optimum, mean':>27} {'spread':>7} {'to core':>8} {'spread':>7}   each seed")
    for arm in dict.fromkeys(f["arm"] for f in found):
        mine = [f for f in found if f["arm"] == arm]
        for f in mine:
            if "error" in f:
                print(f"{arm:14} seed {f['seed']}: {f['error']}")
        good = [f for f in mine if "error" not in f]
        if arm == "noise":
            for f in good:
                print(f"{arm:14} seed {f['seed']}: {f['trades']} trades, {f['trades_share']:.4f} of the random policy's, "
                      f"loss {f['loss_share']:.4f} of its costs")  # fmt: skip
        elif good:
            share = np.array([f["share"] for f in good])
            change = np.array([f["share"] - by["core", f["seed"]]["share"] for f in good if ("core", f["seed"]) in by])
            against = f"{change.mean():+8.3f} {change.std(ddof=1):7.3f}" if len(change) > 1 else f"{'-':>8} {'-':>7}"
            spread = f"{share.std(ddof=1):7.3f}" if len(share) > 1 else f"{'-':>7}"
            print(f"{arm:14} {share.mean():27.3f} {spread} {against}   {' '.join(f'{s:.3f}' for s in share)}")


def keep(done: dict[str, Any], work: Sequence[tuple[str, int]], out: Path) -> Path:
    """Write what is there, in the order of the work: a run that is cut off leaves what it had."""
    done["results"].sort(key=lambda f: work.index((f["arm"], f["seed"])))
    for f in done["results"]:
        if "error" not in f:
            done["driver"], done["device"] = f["driver"], f["device"]
    return record.write(done, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default="0-4", help="0-4 or 0,3 (default: 0-4)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="laid over every arm; may be repeated"
    )
    record.add_out(parser)
    parser.add_argument("--one", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("arms", nargs="*", default=[], metavar="arm", help=f"of {', '.join(ARMS)}; default: all")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.seeds[0], args.set)))
        return
    if unknown := [arm for arm in args.arms if arm not in ARMS]:
        parser.error(f"{unknown[0]} is no arm; choose of {', '.join(ARMS)}")
    began = time.perf_counter()
    done = record.begin("learning", set=args.set, results=[])
    work = list(itertools.product(args.arms or ARMS, args.seeds))
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in as_completed([pool.submit(started, arm, seed, args.set) for arm, seed in work]):
            done["results"].append(future.result())
            path = keep(done, work, args.out)
    found = done["results"]
    show(found)
    print(f"{len(found)} trainings in {time.perf_counter() - began:.0f} s")
    print(path)
    if any("error" in f for f in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
