#!/usr/bin/env python3
"""Three training steps ungraphed, then three replays, small enough for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tools/sanitize_steps.py

memcheck, racecheck and initcheck must be clean. The digest of both ways is printed and must agree.
"""

from __future__ import annotations

import json
import sys

import subjects

import foxhunt_rt as fx


def main() -> int:
    rt = fx.Runtime()
    learner = subjects.odd_learner(rt)
    state = learner.graph.state
    before = state.snapshot()
    for _ in range(3):
        learner.graph.run_ungraphed()
    rt.synchronize()
    ungraphed = state.digest(state.snapshot())
    state.restore(before)
    for _ in range(3):
        learner.graph.launch()
    rt.synchronize()
    replayed = state.digest(state.snapshot())
    print(json.dumps({"ungraphed": ungraphed, "replayed": replayed, "equal": ungraphed == replayed}))
    return 0 if ungraphed == replayed else 1


if __name__ == "__main__":
    sys.exit(main())
