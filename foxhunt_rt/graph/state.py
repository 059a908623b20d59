"""Snapshots of device state: to verify a replay bit for bit, and to warm a graph up without leaving a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError, MappedBuffer


@dataclass(frozen=True)
class Difference:
    """Where two runs first differ: buffer label, flat index of the element, and the two values."""

    buffer: str
    index: int
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.buffer}[{self.index}]: {self.expected} against {self.found}"


class State:
    """The set of buffers whose contents make a step's state.

    Parameters
    ----------
    buffers : iterable of Buffer
        Ranges that repeat are kept once.
    volatile : list of (Buffer, fields)
        Struct fields that no comparison looks at (no fields: the whole buffer).
    """

    def __init__(self, buffers: Iterable[Buffer], volatile: Iterable[tuple[Buffer, tuple[str, ...]]] = ()) -> None:
        unique: dict[tuple[int, int], Buffer] = {}
        for buffer in buffers:
            unique.setdefault((buffer.ptr, buffer.nbytes), buffer)
        self.buffers = list(unique.values())
        self._volatile = {buffer.ptr: fields for buffer, fields in volatile}

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""
        return sum(b.nbytes for b in self.buffers)

    def snapshot(self) -> list[npt.NDArray[Any]]:
        """Host copies. In a capture: refused. Synchronizes: yes. Allocates: no."""
        return [b.to_numpy() for b in self.buffers if isinstance(b, (DeviceBuffer, MappedBuffer))]

    def restore(self, saved: list[npt.NDArray[Any]]) -> None:
        """Writes a snapshot back. In a capture: refused. Synchronizes: yes. Allocates: no."""
        if len(saved) != len(self.buffers):
            raise FoxhuntError("this snapshot belongs to another state")
        for buffer, array in zip(self.buffers, saved, strict=True):
            assert isinstance(buffer, (DeviceBuffer, MappedBuffer))
            buffer.copy_from(array)

    def _stable(self, buffer: Buffer, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array with its volatile words zeroed."""
        fields = self._volatile.get(buffer.ptr)
        if fields is None:
            return array
        copy: npt.NDArray[Any] = array.copy()
        if not fields:
            copy.view(np.uint8)[...] = 0
        for name in fields:
            copy[name] = 0
        return copy

    def digest(self, saved: list[npt.NDArray[Any]]) -> str:
        """SHA-256 of a snapshot without its volatile words, 16 hex digits."""
        total = hashlib.sha256()
        for buffer, array in zip(self.buffers, saved, strict=True):
            total.update(np.ascontiguousarray(self._stable(buffer, array)).tobytes())
        return total.hexdigest()[:16]

    def compare(self, expected: list[npt.NDArray[Any]], found: list[npt.NDArray[Any]]) -> Difference | None:
        """The first element whose bits differ, or None."""
        for buffer, a, b in zip(self.buffers, expected, found, strict=True):
            a, b = self._stable(buffer, a), self._stable(buffer, b)
            item = a.dtype.itemsize
            left = np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, item)
            right = np.ascontiguousarray(b).reshape(-1).view(np.uint8).reshape(-1, item)
            rows = np.flatnonzero((left != right).any(axis=1))
            if rows.size:
                i = int(rows[0])
                return Difference(buffer.label, i, _show(a.reshape(-1)[i]), _show(b.reshape(-1)[i]))
        return None


def _show(value: Any) -> str:
    return f"{value.item()!r}" if value.dtype.names is None else str(value)


def flip_bit(buffer: Buffer) -> None:
    """Flips the lowest bit of the first byte: a planted fault, for showing that verification finds one."""
    assert isinstance(buffer, (DeviceBuffer, MappedBuffer))
    array = buffer.to_numpy()
    array.reshape(-1).view(np.uint8)[0] ^= 1
    buffer.copy_from(array)
