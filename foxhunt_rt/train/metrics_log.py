"""Every training record that the device wrote, on its way into metrics.parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt._files import write_whole
from foxhunt_rt._optional import require

__all__ = ["MetricsLog"]

#: Fields of step_record that serve its transport and say nothing about training.
_TRANSPORT = ("sequence", "started_ns", "ended_ns", "guard_key")


class MetricsLog:
    """Collects `step_record` arrays with their fold and epoch (both counted from 1).

    Attributes
    ----------
    parts : list of (fold, epoch, records)
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, NDArray[Any]]] = []

    def add(self, fold: int, epoch: int, records: NDArray[Any]) -> None:
        """Appends records (n,), in step order."""
        if len(records):
            self.parts.append((fold, epoch, records.copy()))

    def records(self) -> list[NDArray[Any]]:
        """The arrays as they were added: one an epoch."""
        return [records for _, _, records in self.parts]

    def take(self, fold: int, epoch: int) -> list[NDArray[Any]]:
        """Removes and returns the arrays of an epoch, in order."""
        taken = [records for f, e, records in self.parts if (f, e) == (fold, epoch)]
        self.parts = [part for part in self.parts if part[:2] != (fold, epoch)]
        return taken

    def clear(self) -> None:
        """Forgets everything."""
        self.parts = []

    def __len__(self) -> int:
        return sum(len(records) for _, _, records in self.parts)

    def columns(self) -> dict[str, NDArray[Any]]:
        """fold, epoch, step_us (launch to last kernel, by the device's clock), then the fields of step_record."""
        if not self.parts:
            return {}
        records = np.concatenate([part for _, _, part in self.parts])
        result: dict[str, NDArray[Any]] = {
            "fold": np.concatenate([np.full(len(part), fold, np.int32) for fold, _, part in self.parts]),
            "epoch": np.concatenate([np.full(len(part), epoch, np.int32) for _, epoch, part in self.parts]),
            "step_us": (records["ended_ns"] - records["started_ns"]).astype(np.float64) / 1e3,
        }
        for name in records.dtype.names or ():
            if name not in _TRANSPORT and records.dtype[name].names is None:
                result[name] = records[name]
        return result

    def write(self, path: Path) -> None:
        """Writes Parquet, whole or not at all."""
        pa = require("pyarrow", "metrics.parquet")
        parquet = require("pyarrow.parquet", "metrics.parquet")
        table = pa.table({name: pa.array(values) for name, values in self.columns().items()})
        write_whole(path, lambda temporary: parquet.write_table(table, temporary, compression="zstd"))
