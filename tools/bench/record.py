"""What every benchmark leaves behind: one JSON file that says what ran, on which commit, device and driver."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import foxhunt_rt as fx

HERE = Path(__file__).resolve().parent


def commit() -> str:
    """The commit that is measured, with a mark when the tree differs from it; FOXHUNT_COMMIT names it where git cannot."""
    if os.environ.get("FOXHUNT_COMMIT"):
        return os.environ["FOXHUNT_COMMIT"]
    root = HERE.parent.parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, text=True, capture_output=True, check=True)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=root, text=True, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def add_out(parser: argparse.ArgumentParser) -> None:
    """The option that every benchmark has."""
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", help="folder of the JSON file (default: results/)"
    )


def begin(benchmark: str, rt: fx.Runtime | None = None, **found: Any) -> dict[str, Any]:
    """The head of a record, and `found`. Without a runtime (the work is done in processes of their own) the caller fills in
    `device` and `driver`."""
    where: dict[str, Any] = {"device": "none", "driver": "none"}
    if rt is not None:
        where = {"device": rt.device.name, "driver": rt.driver_kind, "driver_version": rt.device.driver_version}
    return {"benchmark": benchmark, "commit": commit(), **where, "python": platform.python_version(),
            "host": platform.processor() or platform.machine(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **found}  # fmt: skip


def write(record: dict[str, Any], out: Path) -> Path:
    """Writes `<benchmark>-<date>.json`, whole or not at all; writing a record again replaces its file."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{record['benchmark']}-{datetime.fromisoformat(record['date']):%Y%m%dT%H%M%S}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return path
