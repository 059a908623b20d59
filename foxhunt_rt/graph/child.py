"""A child: a recorded list of launches, with the buffers it reads and writes.

The body that records a child runs once; what it recorded then runs ungraphed and is captured, so that the two cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from foxhunt_rt import kernels
from foxhunt_rt.driver import (
    Buffer,
    Context,
    FoxhuntError,
    Function,
    LifetimeError,
    Stream,
    copy_device,
    memset,
    memset_pattern,
)
from foxhunt_rt.graph import faults
from foxhunt_rt.graph.conditional import Flag, writes
from foxhunt_rt.graph.updates import plain
from foxhunt_rt.graph.write_check import WriteCheck, launch_ranges


class DeclarationError(FoxhuntError):
    """A launch touches a buffer that its child did not declare."""


@dataclass(frozen=True)
class KernelOp:
    """One kernel launch. ``args`` are the packed bytes of its struct: every scalar in them is baked by value. ``fields`` are
    the values as recorded, among them those marked `Slot`, which may change."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    args: kernels.PackedArgs
    fields: Mapping[str, Any] = field(default_factory=dict)

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        functions[self.kernel].launch(self.grid, self.block, self.args.params, stream, self.shared)


@dataclass(frozen=True)
class MemsetOp:
    """Every element of a buffer set to one value."""

    buffer: Buffer
    value: int | float

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        memset(context, self.buffer, self.value, stream)


@dataclass(frozen=True)
class CopyOp:
    """A device-to-device copy."""

    target: Buffer
    source: Buffer

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        copy_device(context, self.target, self.source, stream)


Op = KernelOp | MemsetOp | CopyOp


def covers(outer: Buffer, ptr: int, nbytes: int) -> bool:
    return outer.ptr <= ptr and ptr + nbytes <= outer.ptr + outer.nbytes


def overlap(a: Buffer, b: Buffer) -> bool:
    return a.ptr < b.ptr + b.nbytes and b.ptr < a.ptr + a.nbytes


class Child:
    """Records launches; use as a context manager from `StepPlan.child`.

    Parameters
    ----------
    name : str
        Unique in its plan.
    reads, writes : iterable of Buffer
        What its launches may touch. Edges between children follow from these, in program order.
    private : iterable of Buffer
        Buffers of which this child touches a part of its own, or only by atomics whose result does not depend on order (guard
        and statistics blocks). They order nothing.
    when : Flag, optional
        Run only on steps on which it is raised, as it stands behind the children recorded before.
    """

    def __init__(self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer],
                 private: Iterable[Buffer] = (), when: Flag | None = None) -> None:  # fmt: skip
        self.name, self.when = name, when
        self.reads, self.writes, self.private = tuple(reads), tuple(writes), tuple(private)
        for buffer in (*self.writes, *self.private):
            if buffer.allocation.read_only:
                raise DeclarationError(f"child {name} writes {buffer.label}, which its owner gave out read-only: copy it with "
                                       "Runtime.array")  # fmt: skip
        self.ops: list[Op] = []
        self._open = False

    def __enter__(self) -> Child:
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open = False
        if error is None and not self.ops:
            raise FoxhuntError(f"child {self.name} launches nothing: leave it out of the plan instead")

    def launch(self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Mapping[str, Any],
               shared: int = 0) -> None:  # fmt: skip
        """Records one kernel launch. Runs nothing, allocates nothing on the device.

        Parameters
        ----------
        kernel : str
            Name of a kernel of the package's images, or of images added by `foxhunt_rt.kernels`.
        grid, block : up to three ints
            Blocks, threads a block.
        args : mapping
            Fields of the kernel's argument struct: buffers for pointers, None for optional pointers, numbers for scalars. Numbers
            are baked by value: what changes between replays belongs in a device block, or is marked `Slot` for
            `StepGraph.set`.
        shared : int
            Bytes of dynamic shared memory.

        Raises
        ------
        foxhunt_rt.kernels.ArgumentError
            A field is missing, unknown, out of range, null, freed or too small.
        DeclarationError
            A pointer is not among the declared reads and writes.
        """
        self._check_open()
        check_dims(kernel, grid, block)
        packed = self.pack(kernel, args)
        self.ops.append(
            KernelOp(kernel, tuple(map(int, grid)), tuple(map(int, block)), int(shared), packed, dict(args))
        )

    def pack(self, kernel: str, args: Mapping[str, Any]) -> kernels.PackedArgs:
        """Checks and packs launch fields, and that the child declared what they point to."""
        packed = kernels.pack(kernel, plain(args))
        for use in packed.uses:
            self._check_declared(kernel, use.field, use.ptr, use.nbytes, writes=use.direction != "in",
                                 label=use.buffer.label)  # fmt: skip
        return packed

    def memset(self, buffer: Buffer, value: int | float = 0) -> None:
        """Records a memset of every element of ``buffer``."""
        self._check_open()
        memset_pattern(buffer, value)
        self._check_declared("memset", "buffer", buffer.ptr, buffer.nbytes, writes=True, label=buffer.label)
        self.ops.append(MemsetOp(buffer, value))

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Records a device-to-device copy of at least 64 bytes (smaller values belong in a device block)."""
        self._check_open()
        if target.nbytes != source.nbytes:
            raise FoxhuntError(f"copy: {target.label} holds {target.nbytes} bytes, {source.label} {source.nbytes}")
        if target.nbytes < 64:
            raise FoxhuntError(f"copy of {target.nbytes} bytes to {target.label}: a node costs 1 us, so scalars are "
                               "read where they are; copy at least 64 bytes")  # fmt: skip
        self._check_declared("copy", "target", target.ptr, target.nbytes, writes=True, label=target.label)
        self._check_declared("copy", "source", source.ptr, source.nbytes, writes=False, label=source.label)
        self.ops.append(CopyOp(target, source))

    @property
    def kernels(self) -> list[str]:
        """Names of its kernels, in order of their first launch."""
        return list(dict.fromkeys(op.kernel for op in self.ops if isinstance(op, KernelOp)))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Everything that it declares, and the word of its flag."""
        return (*self.reads, *self.writes, *self.private, *((self.when.word,) if self.when else ()))

    def written_ranges(self) -> list[tuple[int, int]]:
        """(address, bytes) of everything its launches write, as recorded: also what is declared private."""
        found: list[tuple[int, int]] = []
        for op in self.ops:
            if isinstance(op, KernelOp):
                found += [(use.ptr, use.nbytes) for use in op.args.uses if use.direction != "in"]
            else:
                target = op.buffer if isinstance(op, MemsetOp) else op.target
                found.append((target.ptr, target.nbytes))
        return found

    def run(self, context: Context, stream: Stream, functions: Mapping[str, Function],
            synchronize: bool = False, check: WriteCheck | None = None) -> None:  # fmt: skip
        """Issues every launch on a stream, which may be capturing; with ``synchronize`` waits after each, so that a fault
        names the launch that caused it, and with `check` looks for what it wrote out of range.

        In a capture: recorded. Synchronizes: may, with `synchronize`. Allocates: may, with `check`.
        """
        from foxhunt_rt.driver import DriverError

        for op in self.ops:
            try:
                if check is not None:
                    check.before()
                op.issue(context, stream, functions)
                if synchronize:
                    stream.synchronize()
                if check is not None:
                    check.after(self.name, *launch_ranges(op))
            except DriverError as error:
                uses = [(u.field, u.buffer, u.nbytes) for u in op.args.uses] if isinstance(op, KernelOp) else []
                found = faults.explain(uses, error)
                raise error.at(child=self.name, kernel=getattr(op, "kernel", type(op).__name__), **found) from None

    def must_follow(self, earlier: Child) -> bool:
        """Whether program order over the declared buffers puts an edge from ``earlier`` to this child."""
        if any(overlap(a, b) for a in earlier.writes for b in (*self.reads, *self.writes)) or any(
                overlap(a, b) for a in earlier.reads for b in self.writes):  # fmt: skip
            return True
        # A gated child reads its flag, and no declaration of privacy hides a write to that.
        return bool(
            (self.when and writes(earlier, self.when.word)) or (earlier.when and writes(self, earlier.when.word))
        )

    def check_alive(self) -> None:
        """Raises LifetimeError for a declared buffer that was freed."""
        for buffer in self.buffers:
            if not buffer.alive:
                raise LifetimeError(f"child {self.name} uses {buffer.label}, which was freed: rebuild the plan")

    def _check_open(self) -> None:
        if not self._open:
            raise FoxhuntError(f"child {self.name} is closed: record launches inside its with block")

    def _check_declared(self, kernel: str, field: str, ptr: int, nbytes: int, *, writes: bool, label: str) -> None:
        allowed = (*self.writes, *self.private) if writes else self.buffers
        if not any(covers(buffer, ptr, nbytes) for buffer in allowed):
            verb = "writes" if writes else "reads"
            raise DeclarationError(f"child {self.name}: {kernel}.{field} {verb} {label}, which is not declared: "
                                   f"add it to the child's {verb}")  # fmt: skip


def check_dims(kernel: str, grid: Sequence[int], block: Sequence[int]) -> None:
    """Refuses a launch shape that no device takes."""
    for what, dims, limits in (("grid", grid, (2**31 - 1, 65535, 65535)), ("block", block, (1024, 1024, 64))):
        if not 1 <= len(dims) <= 3 or any(not 1 <= int(n) <= top for n, top in zip(dims, limits, strict=False)):
            raise FoxhuntError(f"{kernel}: {what} {tuple(dims)} is not one to three sizes from 1 to {limits}")
    if math.prod(block) > 1024:
        raise FoxhuntError(f"{kernel}: a block of {tuple(block)} has {math.prod(block)} threads, at most 1024 go")
