"""The launch that adds up rows of statistics (abi/loss.h), part of ddqn and of per_priority (docs/step/ddqn.md)."""

from __future__ import annotations

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child

_AT_ONCE = 16  # rows of a column that a thread loads at once
_MOST_THREADS = 1024


def record(child: Child, rows: Buffer, sums: Buffer) -> None:
    """One launch: rows, f32 (R, W), to sums, f32 (P, W), each of ceil(R / P) rows in a fixed order."""
    (count, width), parts = rows.shape, sums.shape[0]
    chunk = -(-count // parts)
    segments = min(-(-chunk // _AT_ONCE), max(1, _MOST_THREADS // width))
    child.launch("row_stats", grid=(parts,), block=(-(-segments * width // 32) * 32,), shared=4 * segments * width,
                 args=dict(rows=rows, parts=sums, B=count, W=width, chunk=chunk, segments=segments))  # fmt: skip


__all__ = ["record"]
