#!/usr/bin/env python3
"""Golden vectors of every kernel launch of a step: record under one driver, compare under another.

    python tools/golden_vectors.py record step.npz      (for example with FOXHUNT_DRIVER=hostsim)
    python tools/golden_vectors.py compare step.npz     (on a GPU)

A golden replay with launches (`foxhunt_rt.graph.golden`) of a learner of odd sizes. `compare` issues each launch on the bytes
that it was recorded with and reports per kernel the worst deviation of any output: integers and flags must be equal, floats agree
within the tolerance. Exit code 1 when a kernel does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import subjects

import foxhunt_rt as fx
from foxhunt_rt.graph.golden import Golden, Recorder, Replayer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    rt = fx.Runtime()
    step = subjects.odd_learner(rt).graph
    if args.what == "record":
        golden = Recorder(step, "launches").record(args.steps)
        golden.save(args.file)
        print(json.dumps({"file": str(args.file), "arrays": len(golden.arrays), "driver": rt.driver_kind}))
        return 0
    worst = Replayer(step, Golden.load(args.file)).launches()
    for kernel, (deviation, where) in sorted(worst.items()):
        print(f"{kernel:<28} {deviation:10.4f} of the tolerance  {where}")
    passed = all(deviation <= 1 for deviation, _ in worst.values())
    print(json.dumps({"kernels": len(worst), "agree": passed, "device": rt.device.name,
                      "worst": {k: d for k, (d, _) in sorted(worst.items())}}, allow_nan=True))  # fmt: skip
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
