#!/usr/bin/env python3
"""Thirteen children, one of them with a mistake: what the ways to find a fault are tried on, on hostsim and on a GPU.

    python tools/planted_faults.py write                                  what happens by itself: on a GPU nothing is said
    FOXHUNT_GRAPH=debug python tools/planted_faults.py write              child, kernel, argument, index
    foxhunt-rt sanitize --tool racecheck -- python tools/planted_faults.py race
    python tools/planted_faults.py spin                                   the watchdog names the child; ends after 3 s

Child c7 holds the mistake, in the second of its launches. Exit status 0: nothing was said; 1: an error, on stderr in one line.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import foxhunt_rt as fx
from foxhunt_rt.driver import DeviceBuffer, FoxhuntError
from foxhunt_rt.graph import Runtime, StepPlan, Watchdog

CHILDREN, BAD, N = 13, 7, 64
#: Element of y (64 floats) that is stored to. 2^36 floats are 256 GiB: no page is mapped there.
INDEX = {"write": 70, "before": -3, "page": 64 + 1000, "far": 2**36}
#: What is planted -> what finds it. "neighbour" stores into another buffer.
PLANTS = {"none": "nothing", **dict.fromkeys([*INDEX, "neighbour"], "memcheck, FOXHUNT_GRAPH=debug"), "race": "racecheck",
          "uninitialized": "initcheck", "barrier": "hostsim", "mask": "synccheck", "split": "synccheck",
          "spin": "Watchdog"}  # fmt: skip


def plan(rt: Runtime, fault: str, spin_ms: int = 3000) -> StepPlan:
    """The plan, with a fault in the second launch of child c7."""
    made = rt.plan("step")
    x = rt.array(np.arange(N, dtype=np.float32), "features")
    fresh = rt.empty(N, np.float32, "fresh")
    for k in range(CHILDREN):
        y = rt.zeros(N, np.float32, f"gradient{k}")
        with made.child(f"c{k}", reads=[x, fresh], writes=[y]) as child:
            child.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 3, "to": 5, "value": 1.0})
            if k == BAD:
                plant(child, fault, x, fresh, y, spin_ms)
    return made


def plant(
    child: fx.graph.Child, fault: str, x: DeviceBuffer, fresh: DeviceBuffer, y: DeviceBuffer, spin_ms: int
) -> None:
    """Records the launch with the mistake."""
    if fault == "neighbour":
        to = (fresh.ptr - y.ptr) // 4 + 2
        child.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 0, "to": to, "value": 1.0})
    elif fault in INDEX:
        child.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 0, "to": INDEX[fault], "value": 1.0})
    elif fault == "race":
        child.launch("race_shared", (1,), (N,), dict(x=x, y=y, n=N))
    elif fault == "uninitialized":
        child.launch("warp_sum", (1,), (N,), dict(x=fresh, y=y, n=N))
    elif fault == "barrier":
        child.launch("divergent_barrier", (1,), (N,), dict(y=y, skip=5))
    elif fault == "mask":
        child.launch("wrong_mask", (1,), (32,), dict(y=y))
    elif fault == "split":
        child.launch("split_barrier", (1,), (N,), dict(y=y, n=N))
    elif fault == "spin":
        child.launch("spin", (1,), (1,), dict(ns=spin_ms * 10**6))


def run(fault: str, launches: int = 1) -> None:
    """Builds and launches."""
    rt = fx.Runtime()
    step = plan(rt, fault).build()
    for _ in range(launches):
        step.launch()
    rt.synchronize()


def watched(limit_s: float = 0.5, spin_ms: int = 3000) -> None:
    """The spinning kernel under the watchdog, which speaks while it spins. The kernel ends by its own clock."""
    rt = fx.Runtime()
    step = plan(rt, "spin", spin_ms).build()  # its warm launch spins once
    began = time.monotonic()
    with Watchdog(step, limit_s, lambda hang: print(f"after {time.monotonic() - began:.1f} s: {hang}", flush=True)):
        step.launch()
        rt.synchronize()
    print(f"the kernel ended after {time.monotonic() - began:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Thirteen children, one of them with a mistake.")
    parser.add_argument("fault", choices=list(PLANTS))
    fault = parser.parse_args().fault
    try:
        if fault == "spin":
            watched()
        else:
            run(fault)
    except FoxhuntError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
