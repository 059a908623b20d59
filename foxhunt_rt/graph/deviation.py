"""Where two arrays differ: the first element whose bits do, or the one that deviates most from a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Element:
    """One element of two arrays that differ.

    Attributes
    ----------
    index : int
        Flat.
    field : str
        Of a struct, with the index in an array field; else empty.
    expected, found : str
    deviation : float
        In units of the tolerance; infinite where no tolerance applies.
    """

    index: int
    field: str
    expected: str
    found: str
    deviation: float = float("inf")

    def __str__(self) -> str:
        return f"[{self.index}]{self.field}: {self.expected} against {self.found}"


def _show(value: Any) -> str:
    return f"{float(value):.9g}" if np.asarray(value).dtype.kind == "f" else str(value)


def _rows(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1)


def first_difference(expected: npt.NDArray[Any], found: npt.NDArray[Any],
                     volatile: tuple[str, ...] | None = None) -> Element | None:  # fmt: skip
    """The first element whose bits differ, or None; for structs the field, too. NaN equals the same NaN.

    Parameters
    ----------
    volatile : tuple of str, optional
        Struct fields that are left out; empty: everything is.
    """
    if volatile == ():
        return None
    a, b = np.ascontiguousarray(expected).reshape(-1), np.ascontiguousarray(found).reshape(-1)
    if a.dtype.names is None:
        rows = np.flatnonzero((_rows(a) != _rows(b)).any(axis=1))
        return Element(int(rows[0]), "", _show(a[rows[0]]), _show(b[rows[0]])) if rows.size else None
    first: Element | None = None
    for name in a.dtype.names:
        if name in (volatile or ()):
            continue
        width = int(np.prod(a.dtype[name].shape, dtype=int))
        one = first_difference(a[name], b[name])
        if one is not None and (first is None or one.index // width < first.index):
            inner = f"[{one.index % width}]" if width > 1 else ""
            first = Element(one.index // width, f".{name}{inner}{one.field}", one.expected, one.found)
    return first


def worst_deviation(expected: npt.NDArray[Any], found: npt.NDArray[Any], tolerance: float,
                    volatile: tuple[str, ...] | None = None) -> Element | None:  # fmt: skip
    """The element that deviates most, or None where none does.

    Floats deviate by ``|found - expected| / (tolerance * (|expected| + rms))``, rms over the array; integers, and NaN or an
    infinity on one side, infinitely.
    """
    if volatile == ():
        return None
    a, b = np.ascontiguousarray(expected).reshape(-1), np.ascontiguousarray(found).reshape(-1)
    if a.dtype.names is not None:
        worst: Element | None = None
        for name in a.dtype.names:
            if name in (volatile or ()):
                continue
            one = worst_deviation(a[name], b[name], tolerance)
            if one is not None and (worst is None or one.deviation > worst.deviation):
                width = int(np.prod(a.dtype[name].shape, dtype=int))
                inner = f"[{one.index % width}]" if width > 1 else ""
                worst = Element(
                    one.index // width, f".{name}{inner}{one.field}", one.expected, one.found, one.deviation
                )
        return worst
    if a.dtype.kind != "f":
        return first_difference(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    wrong = np.flatnonzero(~finite & ~same)
    if wrong.size:
        return Element(int(wrong[0]), "", _show(x[wrong[0]]), _show(y[wrong[0]]))
    rms = float(np.sqrt(np.mean(x[finite] ** 2))) if finite.any() else 0.0
    scale = np.maximum(tolerance * (np.abs(x) + rms), np.finfo(np.float64).tiny)
    with np.errstate(invalid="ignore"):
        d = np.where(same, 0.0, np.abs(x - y) / scale)
    i = int(np.argmax(d)) if d.size else 0
    return Element(i, "", _show(x[i]), _show(y[i]), float(d[i])) if d.size and d[i] > 0 else None


__all__ = ["Element", "first_difference", "worst_deviation"]
