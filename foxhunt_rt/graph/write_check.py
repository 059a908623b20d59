"""What a launch wrote that it was not given: the node-by-node mode's own answer to a silent write out of range.

A GPU faults only where no page is mapped, and pages are 2 MiB: most writes out of range land in somebody's memory and say
nothing. So under ``FOXHUNT_GRAPH=debug`` every allocation lies between red zones, before each launch all device memory of the
runtime is copied, and after it whatever the launch was not given to write must be unchanged, byte for byte. What may be written
is known exactly: the ABI header bounds every pointer of a kernel.

Not seen: writes outside of what this package allocated, writes of the value that was there, and reads (``foxhunt-rt sanitize``
and hostsim's red zones see those).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt.driver import DeviceBuffer, FoxhuntError, Function
from foxhunt_rt.driver.memory import ZONE_BYTE, Allocation, allocations

if TYPE_CHECKING:
    from foxhunt_rt.graph.runtime import Runtime
    from foxhunt_rt.kernels import PointerUse

logger = logging.getLogger("foxhunt_rt.write_check")

#: A larger allocation is looked at in its red zones alone: a copy before each launch would take its memory twice.
LARGEST = 256 << 20
NOTHING = 2**64 - 1
PARTS = 64
Range = tuple[int, int]


class WildWrite(FoxhuntError):
    """A launch changed memory that it was not given to write.

    Attributes
    ----------
    child, kernel : str
    argument : str
        The pointer whose range holds the address, though it may only be read; else, of those that may be written, the nearest.
    index : int
        In elements of that argument.
    what : str
        The memory that was hit, in words.
    """

    def __init__(self, child: str, kernel: str, argument: str, index: int, count: int, label: str, what: str) -> None:
        super().__init__(child, kernel, argument, index, count, label, what)
        self.child, self.kernel, self.argument, self.index = child, kernel, argument, index
        self.count, self.label, self.what = count, label, what

    def __str__(self) -> str:
        return (f"child {self.child}, kernel {self.kernel}, argument {self.argument}, index {self.index} of {self.count} of "
                f"{self.label}: the launch wrote {self.what}: check the index in the kernel, and the bound in its "
                "ABI header")  # fmt: skip


class WriteCheck:
    """Copies memory before a launch and compares it afterwards. One a runtime, for the node-by-node mode.

    Notes
    -----
    Allocates as much again as the runtime holds; synchronizes; not legal inside a capture. Mapped memory is looked at in its red
    zones alone, since the host may write it at any time.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.context, self.stream = runtime, runtime.context, runtime.stream
        self._function: Function | None = None
        self._first: DeviceBuffer | None = None
        self._copy: DeviceBuffer | None = None
        self._table: DeviceBuffer | None = None
        self._large: set[str] = set()
        self._held: list[tuple[Allocation, int]] = []  # what is copied, and where its copy begins

    def before(self) -> None:
        """Copies what a launch might damage."""
        held, size = [], 0
        for allocation in self._others():
            if allocation.mapped:
                continue
            if allocation.nbytes > LARGEST:
                if allocation.label not in self._large:
                    self._large.add(allocation.label)
                    logger.warning(
                        "%s holds %d bytes: only what lies beside it is checked", allocation.label, allocation.nbytes
                    )
                continue
            held.append((allocation, size))
            size += -(-allocation.nbytes // 256) * 256
        if self._copy is None or self._copy.nbytes < size:
            self._copy = None  # the old one goes first
            self._copy = self.runtime.empty(max(size, 256), np.uint8, "write_check.copy")
        with self.context.current():
            for allocation, at in held:
                self.context.call(self.context.cu.cuMemcpyDtoDAsync, self._copy.ptr + at, allocation.ptr, allocation.nbytes,
                                  self.stream.handle)  # fmt: skip
        self._held = held

    def after(self, child: str, kernel: str, uses: Sequence[PointerUse], written: Sequence[Range]) -> None:
        """Raises `WildWrite` when anything but ``written`` has changed since `before`."""
        assert self._copy is not None
        ranges: list[tuple[int, int, int]] = []
        for allocation, at in self._held:
            for start, size in _without(allocation.ptr, allocation.nbytes, written):
                ranges.append((start, self._copy.ptr + at + start - allocation.ptr, size))
        ranges += [(start, 0, size) for a in self._others() for start, size in a.zones]
        address = self._find(ranges)
        if address == NOTHING:
            return
        for allocation in self._others():  # so that the next launch is not blamed
            allocation.mark_zones()
        raise self._describe(child, kernel, uses, address)

    def _others(self) -> list[Allocation]:
        own = {id(b.allocation) for b in (self._first, self._copy, self._table) if b is not None}
        return [a for a in allocations(self.context) if id(a) not in own]

    def _find(self, ranges: Sequence[tuple[int, int, int]]) -> int:
        if not ranges:
            return NOTHING
        if self._function is None:
            self._function = self.runtime.modules.function("write_check", "find_change")
        if self._first is None:
            self._first = self.runtime.empty(1, np.uint64, "write_check.first")
        table = np.array(ranges, np.uint64).reshape(-1)
        if self._table is None or self._table.shape != table.shape:
            self._table = None
            self._table = self.runtime.empty(table.shape, np.uint64, "write_check.ranges")
        self._table.copy_from(table)
        self._first.copy_from(np.full(1, NOTHING, np.uint64))
        args = kernels.pack("find_change", dict(ranges=self._table, first=self._first, count=len(ranges),
                                                pattern=ZONE_BYTE * 0x01010101))  # fmt: skip
        with self.context.current():
            self._function.launch((PARTS, len(ranges)), (256,), args.params, self.stream)
        return int(self._first.to_numpy()[0])

    def _describe(self, child: str, kernel: str, uses: Sequence[PointerUse], address: int) -> WildWrite:
        def away(use: PointerUse) -> int:
            return max(use.ptr - address, address - (use.ptr + use.nbytes) + 1, 0)

        inside = [u for u in uses if not away(u)]
        use = min(inside or [u for u in uses if u.direction != "in"] or uses, key=away, default=None)
        if use is not None:  # of an element, the first byte that changed need not be its first
            address -= (address - use.ptr) % use.buffer.dtype.itemsize
        what = "outside of every allocation"
        for a in self._others():
            behind = address - a.ptr - a.nbytes
            if -a.zone <= address - a.ptr < 0:
                what = f"{a.ptr - address} bytes before {a.label} ({a.nbytes} bytes)"
            elif 0 <= behind < a.zone:
                what = f"{behind} bytes behind {a.label} ({a.nbytes} bytes)"
            elif 0 <= address - a.ptr < a.nbytes:
                what = f"into {a.label} ({a.nbytes} bytes) at offset {address - a.ptr}"
        if use is None:
            return WildWrite(child, kernel, "none", 0, 0, "nothing", what)
        if inside:
            what += ", which its ABI header only lets it read"
        item = use.buffer.dtype.itemsize
        return WildWrite(
            child, kernel, use.field, (address - use.ptr) // item, use.nbytes // item, use.buffer.label, what
        )


def _without(start: int, size: int, holes: Sequence[Range]) -> list[Range]:
    """The parts of a range that no hole covers."""
    left, at = [], start
    for hole, length in sorted(holes):
        if hole >= start + size or hole + length <= at:
            continue
        if hole > at:
            left.append((at, hole - at))
        at = hole + length
    if at < start + size:
        left.append((at, start + size - at))
    return left


def launch_ranges(op: Any) -> tuple[str, Sequence[PointerUse], list[Range]]:
    """Name, pointers, and what it may write, of a recorded launch, memset or copy."""
    args = getattr(op, "args", None)
    if args is not None:
        return op.kernel, args.uses, [(u.ptr, u.nbytes) for u in args.uses if u.direction != "in"]
    if isinstance(uses := getattr(op, "uses", None), Sequence):  # a call of a library
        return op.name, (), [(u.buffer.ptr, u.buffer.nbytes) for u in uses if u.writes]
    target = getattr(op, "target", None) or op.buffer
    return type(op).__name__, (), [(target.ptr, target.nbytes)]


__all__ = ["WildWrite", "WriteCheck", "launch_ranges"]
