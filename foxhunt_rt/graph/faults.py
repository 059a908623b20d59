"""Names the argument and the element of an access outside an allocation, from what the driver says of it.

NVIDIA's driver says that there was one. hostsim, with its red zones, says where: by address for a page that is not there, by
distance for a write that the pattern round an allocation shows after the launch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from foxhunt_rt.driver import DriverError
from foxhunt_rt.kernels import BufferLike

_PLACE = re.compile(r"(?:(?P<offset>\d+) bytes (?P<side>behind|before)|offset (?P<inside>\d+) of) (?P<label>.+) "
                    r"\((?P<size>\d+) bytes\)")  # fmt: skip
_THREAD = re.compile(r"block \((?P<block>[\d,]+)\), thread \((?P<thread>[\d,]+)\)")
_ADDRESS = re.compile(r"illegal address (?P<address>0x[0-9a-f]+)")


@dataclass(frozen=True)
class Access:
    """An access that should not have been, as a report tells it.

    Attributes
    ----------
    address : int or None
    side : str
        ``"behind"`` or ``"before"`` the allocation, or ``"in"`` it (after it was freed).
    distance : int
        Bytes behind its end, before its start, or from its start.
    label : str
    nbytes : int
        Of the allocation.
    thread : str or None
        ``"block (0,0,0), thread (3,0,0)"`` where it is known.
    """

    address: int | None
    side: str
    distance: int
    label: str
    nbytes: int
    thread: str | None


def parse(report: str) -> Access | None:
    """Reads a report of hostsim, or None where it names no place."""
    place = _PLACE.search(report)
    if place is None:
        return None
    address, thread = _ADDRESS.search(report), _THREAD.search(report)
    tail = report[address.end() + 2 :] if address else report.partition("wrote ")[2]
    place = _PLACE.match(tail) or place
    side = place["side"] or "in"
    return Access(int(address["address"], 16) if address else None, side, int(place["offset"] or place["inside"]),
                  place["label"], int(place["size"]), thread[0] if thread else None)  # fmt: skip


def explain(uses: Sequence[tuple[str, BufferLike, int]], error: DriverError) -> dict[str, str]:
    """What to add to an error that a launch caused: ``argument``, ``index`` and ``thread``, or all its arguments.

    Parameters
    ----------
    uses : sequence of (field, buffer, bytes)
        What the launch was given.
    error : DriverError

    Notes
    -----
    Asks the driver nothing, since its context is dead.
    """
    access = parse(error.where.get("report", ""))
    if access is None:
        return (
            {"arguments": ", ".join(f"{name} = {buffer.label}" for name, buffer, _ in uses)}
            if error.sticky and uses
            else {}
        )
    found: list[tuple[int, str, str]] = []
    for name, buffer, nbytes in uses:
        allocation = getattr(buffer, "allocation", None)
        if allocation is None or (allocation.label, allocation.nbytes) != (access.label, access.nbytes):
            continue
        start = {"behind": allocation.ptr + allocation.nbytes, "before": allocation.ptr, "in": allocation.ptr}[
            access.side
        ]
        address = access.address if access.address is not None else (
            start - access.distance if access.side == "before" else start + access.distance)  # fmt: skip
        away = max(buffer.ptr - address, address - (buffer.ptr + nbytes) + 1, 0)
        item = buffer.dtype.itemsize
        found.append((away, name, f"{(address - buffer.ptr) // item} of {nbytes // item} of {buffer.label}"))
    added = {"thread": access.thread} if access.thread else {}
    if not found:
        return {**added, "argument": f"none: {access.label} is not among them"}
    nearest = min(away for away, _, _ in found)
    names = [name for away, name, _ in found if away == nearest]
    return {"argument": " or ".join(names), "index": next(text for away, _, text in found if away == nearest), **added}


__all__ = ["Access", "explain", "parse"]
