#!/usr/bin/env python3
"""The core step beside its peers, on one machine in one run.

    python tools/bench/compare.py --configurations A,B,C:tf32,D:bf16

A configuration is fp32, or what stands behind the colon; the peers run in the same precision.

Each implementation runs in a process of its own, one after the other: ours (core_step.py), and the same training step
in JAX and PyTorch (peers/), each in its fastest form at these sizes. Medians with p10 and p90, the ratio to the best
peer; JSON to results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: label -> (script, variant)
PEERS = {
    "JAX scan of 100": ("jax_step.py", "scan"),
    "torch compiled + graph": ("torch_step.py", "compile+cudagraph"),
}
#: how the peers are told of a precision
PRECISIONS = {"fp32": [], "tf32": ["--tf32", "1"], "bf16": ["--dtype", "bf16"]}


def last_json(command: list[str], limit: int) -> dict[str, Any]:
    """The last JSON line that a command prints, or {"error": why}."""
    try:
        done = subprocess.run(command, cwd=HERE / "peers", text=True, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]}
    return dict(json.loads(lines[-1]))


def ours(name: str, precision: str, out: Path) -> dict[str, Any]:
    """Our step at a configuration, from the file that core_step.py writes."""
    done = subprocess.run(
        [sys.executable, str(HERE / "core_step.py"), "--configurations", name, "--precisions", precision, "--out", str(out)],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return dict(json.loads(Path(done.stdout.split()[-1]).read_text()))


def main() -> int:
    sys.path.insert(0, str(HERE))
    import core_step
    import record

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default="A,B")
    parser.add_argument("--limit", type=int, default=120, help="seconds a peer may take, compilation included")
    parser.add_argument("--peers", default=",".join(PEERS), help="which of them run beside ours")
    record.add_out(parser)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    done = record.begin("compare", rows=rows)
    for named in args.configurations.split(","):
        name, _, precision = named.partition(":")
        precision = precision or "fp32"
        hidden, batch, capacity = core_step.CONFIGURATIONS[name]
        measured = ours(name, precision, args.out)
        done.update({k: measured[k] for k in ("commit", "device", "driver", "driver_version") if k in measured})
        mine = measured["results"][0] if "results" in measured else measured
        rows.append({"label": "foxhunt-rt", **mine, "configuration": named})
        for label in filter(None, args.peers.split(",")):
            script, variant = PEERS[label]
            command = [sys.executable, script, "--variant", variant, "--hidden", hidden, "--batch", str(batch),
                       "--capacity", str(capacity), "--max-seconds", "4", *PRECISIONS[precision]]  # fmt: skip
            rows.append({"configuration": named, "label": label, **last_json(command, args.limit)})
        best = min((r["us_median"] for r in rows if r["configuration"] == named and r["label"] != "foxhunt-rt"
                    and "us_median" in r), default=None)  # fmt: skip
        for row in (r for r in rows if r["configuration"] == named):
            if "us_median" not in row:
                print(f"{named} {row['label']:<24} {row['error']}")
                continue
            ratio = f"{best / row['us_median']:.2f} x the best peer" if best else ""
            print(
                f"{named} {row['label']:<24} {row['us_median']:9.1f} us  p10 {row['us_p10']:.1f} p90 {row['us_p90']:.1f}  {ratio}"
            )
    print(record.write(done, args.out))
    return 0 if all("us_median" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
