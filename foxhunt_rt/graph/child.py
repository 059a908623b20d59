"""A child: a recorded list of launches, with the buffers it reads and writes.

The body that records a child runs once; what it recorded then runs ungraphed and is captured, so that the two cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from foxhunt_rt import kernels
from foxhunt_rt.driver import (
    Buffer,
    Context,
    FoxhuntError,
    Function,
    LifetimeError,
    Stream,
    capture,
    captures,
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

    @property
    def name(self) -> str:
        return self.kernel

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        functions[self.kernel].launch(self.grid, self.block, self.args.params, stream, self.shared)


@dataclass(frozen=True)
class MemsetOp:
    """Every element of a buffer set to one value."""

    buffer: Buffer
    value: int | float
    name = "memset"

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        memset(context, self.buffer, self.value, stream)


@dataclass(frozen=True)
class CopyOp:
    """A device-to-device copy."""

    target: Buffer
    source: Buffer
    name = "copy"

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        copy_device(context, self.target, self.source, stream)


@dataclass(frozen=True)
class Use:
    """A buffer that a call of a library touches, under the name of its parameter."""

    field: str
    buffer: Buffer
    writes: bool


class LibraryCall(Protocol):
    """What `Child.library` takes: one call of a library, such as a matrix product, that launches on a stream."""

    @property
    def name(self) -> str:
        """What stands where a kernel's name would."""

    @property
    def uses(self) -> Sequence[Use]:
        """Every buffer that it reads or writes."""

    def launch(self, stream: Stream) -> None:
        """Launches on a stream, which may be capturing. Does not synchronize or allocate."""


class LibraryOp:
    """A call of a library: one or several nodes, whose kernels are shared handles that nobody can hand out (`foreign`)."""

    def __init__(self, call: LibraryCall) -> None:
        self.call = call
        self._kinds: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def uses(self) -> Sequence[Use]:
        return self.call.uses

    def issue(self, context: Context, stream: Stream, functions: Mapping[str, Function]) -> None:
        self.call.launch(stream)

    def learn(self, context: Context) -> None:
        """Finds out which nodes one call becomes, by capturing it alone. Not legal inside a capture."""
        if self._kinds is None:
            with Stream(context) as stream:
                with capture(stream) as recording:
                    self.call.launch(stream)
                self._kinds = tuple(node.kind for node in recording.graph.in_order())
                recording.graph.close()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of its nodes, in order; known once a graph was built with it."""
        if self._kinds is None:
            raise FoxhuntError(f"{self.name}: which nodes it becomes is known once the plan is built")
        return self._kinds


Op = KernelOp | MemsetOp | CopyOp | LibraryOp


class Products(Protocol):
    """Who records matrix products: `foxhunt_rt.gemm.Products`, which stands above this layer."""

    @property
    def record(self) -> Callable[..., None]:
        """``record(child, a, b, out, **options)`` records out = a b in a child."""


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
    scratch : iterable of Buffer
        Workspaces: what is in them before and after does not matter, so they are no part of the state; two children with one
        workspace never run side by side.
    when : Flag, optional
        Run only on steps on which it is raised, as it stands behind the children recorded before.
    """

    def __init__(self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer],
                 private: Iterable[Buffer] = (), when: Flag | None = None,
                 scratch: Iterable[Buffer] = ()) -> None:  # fmt: skip
        self.name, self.when = name, when
        self.products: Products | None = None
        self.reads, self.writes, self.private = tuple(reads), tuple(writes), tuple(private)
        self.scratch = tuple(scratch)
        for buffer in (*self.writes, *self.private, *self.scratch):
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

    def library(self, call: LibraryCall) -> None:
        """Records a call of a library. Runs nothing. The ledger lists its kernels as foreign.

        Raises
        ------
        DeclarationError
            It touches a buffer that is not declared.
        """
        self._check_open()
        for use in call.uses:
            self._check_declared(call.name, use.field, use.buffer.ptr, use.buffer.nbytes, writes=use.writes,
                                 label=use.buffer.label)  # fmt: skip
        self.ops.append(LibraryOp(call))

    def gemm(self, a: Buffer, b: Buffer, out: Buffer, **options: Any) -> None:
        """Records out = epilogue(a · b), row-major, by cuBLASLt or by the package's kernels, whichever was measured faster.

        In a capture: refused. Synchronizes: no, but on a GPU the first time of a shape, which it measures. Allocates: no,
        likewise.

        Parameters
        ----------
        a, b, out : Buffer
            (M, K), (K, N), (M, N).
        **options
            ``bias``, ``epilogue`` (``"none"``, ``"bias"``, ``"bias_relu"``), ``precision``, ``transpose_a``, ``transpose_b``: see
            `foxhunt_rt.gemm.Products.record`.

        Raises
        ------
        FoxhuntError
            The runtime has nobody who records products.
        """
        if self.products is None:
            raise FoxhuntError(
                f"child {self.name}: nobody records products: call foxhunt_rt.gemm.attach(runtime) before making the plan"
            )
        captures.refuse(f"child {self.name}: choosing a product, which may have to be measured,")
        self.products.record(self, a, b, out, **options)

    @property
    def kernels(self) -> list[str]:
        """Names of its kernels, in order of their first launch."""
        return list(dict.fromkeys(op.kernel for op in self.ops if isinstance(op, KernelOp)))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Everything that it declares, and the word of its flag."""
        return (*self.reads, *self.writes, *self.private, *self.scratch, *((self.when.word,) if self.when else ()))

    def written_ranges(self) -> list[tuple[int, int]]:
        """(address, bytes) of everything its launches write, as recorded: also what is declared private."""
        found: list[tuple[int, int]] = []
        for op in self.ops:
            if isinstance(op, KernelOp):
                found += [(use.ptr, use.nbytes) for use in op.args.uses if use.direction != "in"]
            elif isinstance(op, LibraryOp):
                found += [(use.buffer.ptr, use.buffer.nbytes) for use in op.uses if use.writes]
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
                raise error.at(child=self.name, kernel=op.name, **found) from None

    def must_follow(self, earlier: Child) -> bool:
        """Whether program order over the declared buffers puts an edge from ``earlier`` to this child."""
        if any(overlap(a, b) for a in earlier.writes for b in (*self.reads, *self.writes)) or any(
                overlap(a, b) for a in earlier.reads for b in self.writes):  # fmt: skip
            return True
        if any(overlap(a, b) for a in earlier.scratch for b in self.scratch):
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
        allowed = (*self.writes, *self.private, *self.scratch) if writes else self.buffers
        if not any(covers(buffer, ptr, nbytes) for buffer in allowed):
            verb = "writes" if writes else "reads"
            raise DeclarationError(f"child {self.name}: {kernel}.{field} {verb} {label}, which is not declared: "
                                   f"add it to the child's {verb}")  # fmt: skip


def check_dims(kernel: str, grid: Sequence[int], block: Sequence[int]) -> None:
    """Refuses a launch shape that no device takes."""
    for what, dims, limits in (("grid", grid, (2**31 - 1, 65535, 65535)), ("block", block, (1024, 1024, 64))):
        if not 1 <= len(dims) <= 3 or any(not 1 <= int(n) <= top for n, top in zip(dims, limits, strict=False)):
            raise FoxhuntError(f"{kernel}: {what} {tuple(dims)} is not one to three sizes from 1 to {limits}: put what grows "
                               "with the data in the first")  # fmt: skip
    if math.prod(block) > 1024:
        raise FoxhuntError(f"{kernel}: a block of {tuple(block)} has {math.prod(block)} threads, at most 1024 go")
