#!/usr/bin/env python3
"""What each launch of the core step costs as a dependent node of a graph: `StepGraph.profile` at a benchmark's configuration.

    python tools/bench/launch_times.py --configurations A,B

The sum over the longest chain predicts the step; a launch far above the others is the one to look at.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import core_step
import record

import foxhunt_rt as fx


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default="A")
    parser.add_argument("--precision", default=fx.dqn.Config().network.precision, choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--budget", type=float, default=0.0)
    record.add_out(parser)
    args = parser.parse_args()
    rt = fx.Runtime()
    results = []
    for name in args.configurations.split(","):
        learner = core_step.learner(rt, name, args.budget, args.precision)
        profile = learner.graph.profile()
        print(profile.text())
        print(
            f"{name}: {sum(launch.median_us for launch in profile.launches):.1f} us, all launches one after the other"
        )
        results.append({"configuration": name, "precision": args.precision, "profile": dataclasses.asdict(profile)})
        learner.close()
    print(record.write(record.begin("launch_times", rt, results=results), args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
