#!/usr/bin/env python3
"""Compile every .cu for sm_80 and sm_90 and write what ptxas says of each kernel to build/resource-report.txt.

Registers, shared memory, stack and spills; exit code 1 when a kernel spills registers, or takes more of them than a
multiprocessor has for the largest block in which the step launches it (all features on, recorded under hostsim, which has no such
limit). Needs nvcc (a toolkit or NVIDIA's wheels), not a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import toolkit

import build

ARCHS = ("80", "90")
FOLDER = build.ROOT / "build" / "resources"
REGISTERS = 65536  # of a multiprocessor, from sm_70 on
REPORT = build.ROOT / "build" / "resource-report.txt"


@dataclass(frozen=True)
class Resources:
    """What one kernel takes on one architecture; bytes but for the registers (per thread)."""

    image: str
    kernel: str
    arch: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def spills(self) -> bool:
        return self.spill_stores > 0 or self.spill_loads > 0


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_log(image: str, text: str) -> list[Resources]:
    """The kernels of one ptxas log (`--resource-usage`)."""
    found = []
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", text)[1:]:
        entry, frame, used, shared = _ENTRY.search(part), _FRAME.search(part), _USED.search(part), _SHARED.search(part)
        if entry is None or frame is None or used is None:
            raise build.BuildError(f"{image}: cannot read what ptxas says: {part.splitlines()[0]}")
        stack, stores, loads = (int(number) for number in frame.groups())
        found.append(
            Resources(image, entry[1], entry[2], int(used[1]), int(shared[1]) if shared else 0, stack, stores, loads)
        )
    return found


def table(rows: list[Resources]) -> str:
    """The report: one line per kernel and architecture, the largest stacks and spills marked."""
    head = (
        f"{'kernel':32} {'arch':7} {'registers':>9} {'shared':>7} {'stack':>6} {'spill st':>8} {'spill ld':>8}  image"
    )
    lines = [head, "-" * len(head)]
    for row in sorted(rows, key=lambda row: (row.image, row.kernel, row.arch)):
        mark = "  SPILLS" if row.spills else "  stack" if row.stack else ""
        lines.append(
            f"{row.kernel:32} {row.arch:7} {row.registers:9} {row.shared:7} {row.stack:6} {row.spill_stores:8} "
            f"{row.spill_loads:8}  {row.image}{mark}"
        )
    return "\n".join(lines) + "\n"


def launched_blocks() -> dict[str, int]:
    """Threads of the largest block in which the whole step launches each kernel: few rows, and many."""
    os.environ["FOXHUNT_DRIVER"] = "hostsim"
    sys.path.insert(0, str(build.ROOT))
    import subjects

    import foxhunt_rt as fx

    most: dict[str, int] = {}
    full = fx.dqn.Config.profile("full").with_set(
        ["replay.capacity=1024", "her.achieved_column=0", "her.goal_column=1"]
    )
    for batch in (64, 320):
        with fx.Runtime() as rt:
            config = full.with_set([f"replay.batch={batch}"])
            learner = fx.dqn.Learner(rt, config, subjects.PEER_STATE_DIM, subjects.PEER_BRANCHES)
            for child in learner.graph.children:
                for op in child.ops:
                    if hasattr(op, "block"):
                        most[op.kernel] = max(most.get(op.kernel, 0), math.prod(op.block))
            learner.close()
    return most


def too_large(rows: list[Resources], blocks: dict[str, int]) -> list[str]:
    """Kernels that a device refuses to launch in these blocks: a warp's registers come in units of 256."""
    return sorted(
        {
            f"{row.kernel} ({row.registers} registers, {blocks[row.kernel]} threads)"
            for row in rows
            if -(-row.registers * 32 // 256) * 256 * -(-blocks.get(row.kernel, 0) // 32) > REGISTERS
        }
    )


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        build.build(FOLDER / "native", ARCHS, build_dir=FOLDER, host=False)
        kernels = build.scan_kernels()
        images = sorted({kernel["image"] for kernel in kernels.values()})
        rows = [
            row
            for arch in ARCHS
            for image in images
            for row in parse_log(image, (FOLDER / "logs" / f"sm_{arch}" / f"{image}.txt").read_text())
        ]
        missing = {(name, f"sm_{arch}") for name in kernels for arch in ARCHS} - {
            (row.kernel, row.arch) for row in rows
        }
        if missing:
            raise build.BuildError(f"no resource usage for {sorted(missing)}: delete {FOLDER} and run again")
    except (build.BuildError, toolkit.ToolkitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    REPORT.write_text(table(rows))
    spilling = sorted({row.kernel for row in rows if row.spills})
    most = max(rows, key=lambda row: row.registers)
    print(
        f"{REPORT.relative_to(build.ROOT)}: {len(kernels)} kernels, at most {most.registers} registers ({most.kernel})"
    )
    if refused := too_large(rows, launched_blocks()):
        print(f"error: no device launches {', '.join(refused)}: smaller blocks, or launch bounds", file=sys.stderr)
        return 1
    if spilling:
        print(
            f"error: register spills in {', '.join(spilling)}: smaller tiles, or looser launch bounds", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
