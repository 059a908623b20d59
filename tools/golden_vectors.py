#!/usr/bin/env python3
"""Golden vectors of every kernel launch of a step: record under one driver, compare under another.

    python tools/golden_vectors.py record step.npz      (for example with FOXHUNT_DRIVER=hostsim)
    python tools/golden_vectors.py compare step.npz     (on a GPU)

`record` runs training steps ungraphed and writes, for each launch, the bytes of every buffer before it and of every buffer it
writes after it. `compare` puts the same bytes in, issues the same launch, and reports per kernel the worst deviation of any
output: integers and flags must be equal, floats agree within TOLERANCE. Exit code 1 when a kernel does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import foxhunt_rt as fx
from foxhunt_rt.driver import DeviceBuffer, MappedBuffer
from foxhunt_rt.graph import StepGraph
from foxhunt_rt.graph.child import KernelOp

# |gpu - host| <= TOLERANCE * (|host| + rms of the tensor): sums in another order, fused multiply-adds, other expf and logf.
TOLERANCE = 2e-5
VOLATILE = {"started_ns", "ended_ns"}


def launches(step: StepGraph) -> Iterator[tuple[str, int, KernelOp, Any]]:
    """(child, position, launch, functions) in program order."""
    assert step._ungraphed is not None
    for child, functions in zip(step.children, step._ungraphed, strict=True):
        for position, op in enumerate(child.ops):
            if isinstance(op, KernelOp):
                yield child.name, position, op, functions
            else:
                op.issue(step.runtime.context, step.runtime.stream, functions)


def touched(op: KernelOp) -> dict[str, Any]:
    """The bytes of each pointer argument, as a buffer of u8, by field."""
    found = {}
    for use in op.args.uses:
        assert isinstance(use.buffer, (DeviceBuffer, MappedBuffer))
        found[use.field] = use.buffer.view((use.buffer.nbytes,), np.uint8)[: use.nbytes]
    return found


def record(step: StepGraph, out: dict[str, np.ndarray], run: int) -> None:
    for child, position, op, functions in launches(step):
        parts = touched(op)
        for use in op.args.uses:
            out[f"{run}/{child}/{position}/{op.kernel}/{use.field}/before"] = parts[use.field].to_numpy()
        op.issue(step.runtime.context, step.runtime.stream, functions)
        step.runtime.synchronize()
        for use in op.args.uses:
            if use.direction != "in":
                out[f"{run}/{child}/{position}/{op.kernel}/{use.field}/after"] = parts[use.field].to_numpy()


def deviation(kind: np.dtype, expected: np.ndarray, found: np.ndarray) -> tuple[float, str]:
    """Worst deviation in units of the tolerance, and where; infinite for a wrong integer or NaN on one side."""
    if kind.names:
        worst = (0.0, "")
        for name in kind.names:
            if name in VOLATILE:
                continue
            d, where = deviation(kind[name].base, expected[name].reshape(-1), found[name].reshape(-1))
            worst = max(worst, (d, f".{name}{where}"))
        return worst
    if kind.kind != "f":
        bad = np.flatnonzero(expected != found)
        return (np.inf, f"[{bad[0]}] {expected[bad[0]]} against {found[bad[0]]}") if bad.size else (0.0, "")
    a, b = expected.astype(np.float64), found.astype(np.float64)
    if (np.isnan(a) != np.isnan(b)).any():
        return np.inf, f"[{int(np.flatnonzero(np.isnan(a) != np.isnan(b))[0])}] NaN on one side"
    finite = np.isfinite(a) & np.isfinite(b)
    if (a[~finite & ~np.isnan(a)] != b[~finite & ~np.isnan(a)]).any():
        return np.inf, " an infinity on one side"
    rms = float(np.sqrt(np.mean(a[finite] ** 2))) if finite.any() else 0.0
    scale = TOLERANCE * (np.abs(a) + rms)
    with np.errstate(invalid="ignore", divide="ignore"):
        d = np.where(finite & (a != b), np.abs(a - b) / np.where(scale > 0, scale, np.finfo(float).tiny), 0.0)
    i = int(np.argmax(d)) if d.size else 0
    return (float(d[i]), f"[{i}] {a[i]:.9g} against {b[i]:.9g}") if d.size else (0.0, "")


def compare(step: StepGraph, saved: Any, run: int, worst: dict[str, tuple[float, str]]) -> None:
    for child, position, op, functions in launches(step):
        parts = touched(op)
        for use in op.args.uses:
            parts[use.field].copy_from(saved[f"{run}/{child}/{position}/{op.kernel}/{use.field}/before"])
        op.issue(step.runtime.context, step.runtime.stream, functions)
        step.runtime.synchronize()
        for use in op.args.uses:
            if use.direction == "in":
                continue
            kind = np.dtype(use.buffer.dtype)
            expected = saved[f"{run}/{child}/{position}/{op.kernel}/{use.field}/after"]
            found = parts[use.field].to_numpy()
            whole = expected.size // kind.itemsize * kind.itemsize
            d, where = deviation(kind, expected[:whole].view(kind), found[:whole].view(kind))
            worst[op.kernel] = max(worst.get(op.kernel, (0.0, "")), (d, f"{child}.{use.field}{where}"))


def subject_steps() -> list[StepGraph]:
    """The steps to record: a learner of odd sizes on synthetic rows."""
    import subjects

    return [subjects.odd_learner(fx.Runtime()).graph]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    steps = subject_steps()
    if args.what == "record":
        out: dict[str, np.ndarray] = {}
        for n, step in enumerate(steps):
            with step.runtime.context.current():
                for run in range(args.steps):
                    record(step, out, n * args.steps + run)
        np.savez_compressed(args.file, **out)
        print(json.dumps({"file": str(args.file), "arrays": len(out), "driver": steps[0].runtime.driver_kind}))
        return 0
    worst: dict[str, tuple[float, str]] = {}
    with np.load(args.file) as saved:
        for n, step in enumerate(steps):
            with step.runtime.context.current():
                for run in range(args.steps):
                    compare(step, saved, n * args.steps + run, worst)
    for kernel, (d, where) in sorted(worst.items()):
        print(f"{kernel:<28} {d:10.4f} of the tolerance  {where}")
    passed = all(d <= 1 for d, _ in worst.values())
    print(json.dumps({"kernels": len(worst), "agree": passed, "device": steps[0].runtime.device.name,
                      "worst": {k: d for k, (d, _) in sorted(worst.items())}}, allow_nan=True))  # fmt: skip
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
