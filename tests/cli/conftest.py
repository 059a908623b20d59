"""Running the real command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., "Done"]


class Done:
    """A finished command."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def error(self) -> str:
        """The one line that the error policy promises."""
        lines = [line for line in self.err.splitlines() if not line.startswith("foxhunt-rt: using ")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("foxhunt-rt: ")
        return lines[0]

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def environment(**extra: str) -> dict[str, str]:
    """Of a subprocess that runs this checkout, as a user would: without the strict modes of the tests."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "FOXHUNT_HOSTSIM": "", **extra}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """``cli("train", "file", ..., env={...})`` in an empty folder, with an empty cache."""

    def run(*args: str, env: dict[str, str] | None = None, timeout: float = 100) -> Done:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        merged = environment(**{"FOXHUNT_CACHE": str(tmp_path / "cache"), **(env or {})})
        return Done(subprocess.run([sys.executable, "-m", "foxhunt_rt", *args], cwd=work, env=merged, text=True,
                                   capture_output=True, timeout=timeout, check=False))  # fmt: skip

    return run


@pytest.fixture
def leftovers(tmp_path: Path) -> Callable[[], list[str]]:
    """Everything that commands have left behind."""

    def find() -> list[str]:
        roots = (tmp_path / "work", tmp_path / "cache")
        return [str(p.relative_to(tmp_path)) for root in roots if root.exists() for p in root.rglob("*") if p.is_file()]

    return find


def csv_lines(bars: int = 600, *, seed: int = 3) -> list[str]:
    """A good CSV file of minute bars: a walk on ticks of 0.25, as lines."""
    rng = np.random.default_rng(seed)
    close = 1000 + 0.25 * np.cumsum(rng.integers(-3, 4, bars))
    opened = np.concatenate(([1000.0], close[:-1]))
    high, low = np.maximum(opened, close) + 0.25, np.minimum(opened, close) - 0.25
    start = np.datetime64("2024-01-02T10:00")
    lines = ["ts_event,open,high,low,close,volume,symbol"]
    for i in range(bars):
        stamp = start + np.timedelta64(i % 300, "m") + np.timedelta64(i // 300, "D")
        lines.append(f"{stamp}:00Z,{opened[i]},{high[i]},{low[i]},{close[i]},{int(rng.integers(1, 50))},TEST")
    return lines
