"""DeviceBuffer and MappedBuffer: typed, shaped, labelled device memory, and pinned host memory that kernels address.

An `Allocation` is what the driver gave; buffers and their views share it and keep it alive. It is freed once: by
`free`, or when the last reference goes, or at interpreter exit, always before the context and never while a launch that
uses it may be in flight (the streams it was used on are waited for first).
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import captures, dlpack, loader
from foxhunt_rt.driver.calls import counts
from foxhunt_rt.driver.context import Context
from foxhunt_rt.driver.errors import CaptureError, DriverError, FoxhuntError, LifetimeError, OtherRuntime, OutOfMemory
from foxhunt_rt.driver.stream import Event, Stream

_live: weakref.WeakSet[Allocation] = weakref.WeakSet()

#: Bytes on both sides of an allocation that nobody may touch, and what each of them holds, under ``FOXHUNT_GRAPH=debug``.
ZONE, ZONE_BYTE = 4096, 0xA5


def zone_bytes() -> int:
    """How wide the red zones of a new allocation are: none, but for the node-by-node mode (`foxhunt_rt.graph.write_check`), and
    there only where hostsim has none of its own, which are better: they stop the access itself."""
    if os.environ.get("FOXHUNT_GRAPH") != "debug":
        return 0
    sim = loader.hostsim()
    return 0 if sim is not None and sim.fxHostsimOption(b"redzones") > 0 else ZONE


def allocations(context: Context) -> list[Allocation]:
    """What this package allocated in a context and did not free, by address."""
    return sorted((a for a in _live if a.context is context and a.alive), key=lambda a: a.ptr)


def live_allocations() -> list[tuple[str, int]]:
    """(label, bytes) of every allocation alive in this process, largest first."""
    return sorted(((a.label, a.nbytes) for a in _live if a.alive), key=lambda item: -item[1])


def live_bytes(context: Context) -> int:
    """Bytes of the allocations alive in one context: of one runtime."""
    return sum(a.nbytes for a in _live if a.context is context and a.alive)


class Allocation:
    """One driver allocation. ``pins`` counts the built graphs that hold its address, ``exports`` the DLPack consumers: while
    there are any it is not freed. ``zone`` bytes of what the driver gave lie before ``ptr``, and as many behind the end."""

    read_only = False
    exports = 0
    zone = 0

    def __init__(self, stream: Stream, nbytes: int, label: str, mapped: bool) -> None:
        context = stream.context
        cu = context.cu
        self.context, self.stream, self.nbytes, self.label, self.mapped = context, stream, nbytes, label, mapped
        self.pins = 0
        self.zone = zone_bytes()
        padded = nbytes + 2 * self.zone
        if stream.capturing:
            raise CaptureError(f"{label}: allocation inside a capture would be frozen into the graph: allocate before")
        captures.refuse(f"{label}: allocation")
        with context.current():
            try:
                if mapped:
                    flags = cu.CU_MEMHOSTALLOC_DEVICEMAP | cu.CU_MEMHOSTALLOC_PORTABLE
                    start = int(context.call(cu.cuMemHostAlloc, padded, flags))
                else:
                    start = int(context.call(cu.cuMemAlloc, padded))
            except OutOfMemory as error:
                status, free, total = cu.cuMemGetInfo()
                left = "unknown" if status else f"{int(free):,} of {int(total):,}"
                largest = ", ".join(f"{name} {size:,}" for name, size in live_allocations()[:3]) or "none"
                raise error.at(asked=f"{label}: {nbytes:,} bytes", free=left, largest=largest) from None
            # From here on it is freed, whatever else fails.
            self._finalizer: Any = context.finalize(self, _release, stream, start, mapped)
            host, start = (start, int(context.call(cu.cuMemHostGetDevicePointer, start, 0))) if mapped else (0, start)
        sim = loader.hostsim()
        if sim is not None:
            sim.fxHostsimLabel(start, label.encode())
        self.ptr, self.host_ptr = start + self.zone, host + self.zone if mapped else 0
        self.mark_zones()
        _live.add(self)

    @property
    def zones(self) -> list[tuple[int, int]]:
        """(address, bytes) of the red zones."""
        return [(self.ptr - self.zone, self.zone), (self.ptr + self.nbytes, self.zone)] if self.zone else []

    def mark_zones(self) -> None:
        """Writes the pattern of the red zones. Queued on the allocation's stream where it is device memory."""
        for start, size in self.zones:
            if self.mapped:
                ctypes.memset(self.host_ptr + start - self.ptr, ZONE_BYTE, size)
                continue
            with self.context.current():
                self.context.call(self.context.cu.cuMemsetD8Async, start, ZONE_BYTE, size, self.stream.handle)

    @property
    def alive(self) -> bool:
        """Whether it has not been freed. In a dead context or a forked child it may be so and useless: using it says which."""
        return bool(self._finalizer.alive)

    def free(self) -> None:
        captures.refuse(f"{self.label}: free")
        if self.pins:
            raise LifetimeError(f"{self.label} is used by {self.pins} built graph(s): close those first")
        if self.exports:
            raise LifetimeError(f"{self.label} is used by {self.exports} DLPack consumer(s): delete those arrays first")
        self._finalizer()


class ForeignAllocation(Allocation):
    """Memory that somebody else owns: kept by ``owner`` until this is freed, then ``release`` is called.

    ``host_ptr`` is its address for the host, 0 where the host cannot read it. ``where``, for owners that can move their data,
    says where it is now: a step asks before each launch.
    """

    def __init__(self, stream: Stream, ptr: int, nbytes: int, label: str, owner: object, *, host_ptr: int = 0,
                 read_only: bool = False, release: Callable[[], None] | None = None,
                 where: Callable[[], int] | None = None) -> None:  # fmt: skip
        self.where, self._wrapped_at = where, host_ptr or ptr
        self.context, self.stream, self.nbytes, self.label = stream.context, stream, nbytes, label
        self.ptr, self.host_ptr, self.mapped, self.read_only = ptr, host_ptr, host_ptr != 0, read_only
        self.pins = 0
        self._finalizer = stream.context.finalize(self, _let_go, stream, owner, release)

    def check_in_place(self) -> None:
        """Raises LifetimeError when the owner has moved its data since it was wrapped."""
        if self.where is not None and (now := self.where()) != self._wrapped_at:
            raise LifetimeError(f"{self.label}: its owner has moved it from {self._wrapped_at:#x} to {now:#x}, which a captured "
                                "launch cannot follow: wrap it again and rebuild the step")  # fmt: skip

    def free(self) -> None:
        super().free()
        self.where = None  # which keeps the owner alive


def _let_go(context: Context, stream: Stream, owner: object, release: Callable[[], None] | None) -> None:
    if context.usable:
        with context.current():
            context.cu.cuStreamSynchronize(stream.handle)  # the owner may reuse the memory at once
    if release is not None:
        release()


def _release(context: Context, stream: Stream, handle: int, mapped: bool) -> None:
    if not context.usable:
        return
    cu = context.cu
    with context.current():
        cu.cuStreamSynchronize(stream.handle)  # a destructor never raises: the status of these is not looked at
        free = cu.cuMemFreeHost if mapped else cu.cuMemFree
        counts[free.__name__] += 1
        free(handle)


class Buffer:
    """What a kernel can be given: device address, shape, dtype, label. Views share the allocation."""

    def __init__(self, allocation: Allocation, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any],
                 label: str) -> None:  # fmt: skip
        self.allocation, self.offset, self.shape, self.dtype, self.label = allocation, offset, shape, dtype, label
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.ptr = allocation.ptr + offset

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def alive(self) -> bool:
        """Whether its memory is there: not freed, and the context usable."""
        return self.allocation.alive

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        state = "" if self.alive else ", freed"
        return f"<{type(self).__name__} {self.label} {self.dtype}{list(self.shape)} at {self.ptr:#x}{state}>"

    def __getitem__(self, rows: slice) -> Any:
        """Rows along the first axis as a view."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError(f"{self.label}: index with a slice of step 1 (a contiguous view), or use to_numpy()")
        lo, hi, _ = rows.indices(self.shape[0])
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        return type(self)(self.allocation, self.offset + lo * row, (max(hi - lo, 0), *self.shape[1:]), self.dtype,
                          f"{self.label}[{lo}:{hi}]")  # fmt: skip

    def view(self, shape: Sequence[int], dtype: npt.DTypeLike | None = None) -> Any:
        """The same bytes with another shape and dtype; the sizes must agree."""
        kind = np.dtype(dtype) if dtype is not None else self.dtype
        if math.prod(shape) * kind.itemsize != self.nbytes:
            raise FoxhuntError(f"{self.label}: a view of {tuple(shape)} {kind} is not {self.nbytes} bytes long")
        return type(self)(self.allocation, self.offset, tuple(shape), kind, self.label)

    def _check(self, doing: str) -> None:
        self.allocation.context.check_usable()
        if not self.allocation.alive:
            raise LifetimeError(f"{self.label} was freed: {doing} is not possible")
        if self.allocation.stream.capturing:
            raise CaptureError(
                f"{self.label}: {doing} is not legal inside a capture of its stream: do it before, or after"
            )
        captures.refuse(f"{self.label}: {doing}")

    def free(self) -> None:
        """Frees the allocation (of every view too), or lets go of its owner. Synchronizes with its stream. Refused while a built
        graph or a DLPack consumer uses it.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        self.allocation.free()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. ``stream`` is the runtime's: a consumer waits for it before it reads."""
        self.allocation.context.check_usable()
        if not self.alive:
            raise LifetimeError(f"{self.label} was freed: it has no interface any more")
        described = {"descr": self.dtype.descr} if self.dtype.names else {}
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.ptr, self.allocation.read_only), "strides": None,
                "version": 3, "stream": int(self.allocation.stream.handle), **described}  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, ordinal): the CPU under hostsim, whose device memory the host reads as its own."""
        if loader.kind() == "hostsim":
            return dlpack.CPU, 0
        return (dlpack.CUDA_HOST if self.allocation.mapped else dlpack.CUDA), self.allocation.context.device.ordinal

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:  # fmt: skip
        """A capsule over the same memory, which stays allocated until the consumer lets go of it.

        The parameters are those of the Array API standard: the consumer's ``stream``, ``max_version`` of DLPack,
        ``dl_device``, and ``copy``, which is refused.

        On a GPU the consumer's stream waits for the runtime's, and the host does not; memory that the CPU reads is synchronized
        with first.

        In a capture: refused. Synchronizes: yes, on hostsim and of mapped memory; of device memory the consumer's stream
        waits. Allocates: no.
        """
        self._check("__dlpack__")
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) not in (device, (dlpack.CPU, 0))):
            raise BufferError(
                f"{self.label}: __dlpack__ makes no copy and stays on its device {device}: use to_numpy()"
            )
        if dl_device is not None and tuple(dl_device) != device and device[0] == dlpack.CUDA:
            raise BufferError(f"{self.label} lies in device memory {device}: use to_numpy() for the CPU")
        if device[0] == dlpack.CUDA:
            if stream != -1:
                self.allocation.stream.before(1 if stream is None else stream)
        else:
            if stream is not None and device[0] == dlpack.CPU:
                raise BufferError(f"{self.label} is exported as CPU memory, which has no stream: pass stream=None")
            self.allocation.stream.synchronize()
        allocation = self.allocation

        def released() -> None:
            allocation.exports -= 1

        capsule = dlpack.export(self.allocation.host_ptr + self.offset if allocation.mapped else self.ptr, self.shape, self.dtype,
                                (device if dl_device is None else (int(dl_device[0]), int(dl_device[1]))),
                                versioned=max_version is not None and max_version[0] >= 1, read_only=allocation.read_only,
                                keep=allocation, released=released)  # fmt: skip
        allocation.exports += 1
        return capsule


class DeviceBuffer(Buffer):
    """Typed device memory, aligned to 256 bytes. Made by `Runtime.empty`, `zeros` and `array`."""

    @classmethod
    def allocate(cls, stream: Stream, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> DeviceBuffer:
        """Device memory with undefined contents, of a stream's context. `Runtime.empty` is the usual way.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        dims, kind = _shape(shape), np.dtype(dtype)
        nbytes = math.prod(dims) * kind.itemsize
        if nbytes <= 0:
            raise FoxhuntError(f"{label}: a buffer of shape {dims} holds nothing: every dimension must be at least 1")
        return cls(Allocation(stream, nbytes, label, mapped=False), 0, dims, kind, label)

    def copy_from(self, array: npt.ArrayLike) -> None:
        """Copies a host array of the same shape and dtype in.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self._check("copy_from")
        source = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
        if source.dtype != self.dtype or source.shape != self.shape:
            raise FoxhuntError(f"{self.label} is {self.dtype}{list(self.shape)}, the array {source.dtype}"
                               f"{list(source.shape)}: convert it first, nothing was copied")  # fmt: skip
        context = self.allocation.context
        with context.current():
            context.call(context.cu.cuMemcpyHtoDAsync, self.ptr, source.ctypes.data, self.nbytes,
                         self.allocation.stream.handle)  # fmt: skip
        self.allocation.stream.synchronize()

    def to_numpy(self) -> npt.NDArray[Any]:
        """A host copy. In a capture: refused. Synchronizes: yes. Allocates: no."""
        self._check("to_numpy")
        out = np.empty(self.shape, self.dtype)
        context = self.allocation.context
        with context.current():
            context.call(context.cu.cuMemcpyDtoHAsync, out.ctypes.data, self.ptr, self.nbytes,
                         self.allocation.stream.handle)  # fmt: skip
        self.allocation.stream.synchronize()
        return out

    def copy_from_device(self, source: Buffer) -> None:
        """Copies another buffer of equal size, queued on this buffer's stream.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        self._check("copy_from_device")
        if source.nbytes != self.nbytes:
            raise FoxhuntError(f"{self.label} holds {self.nbytes} bytes, {source.label} {source.nbytes}")
        if source.allocation.context.device.ordinal != self.allocation.context.device.ordinal:
            raise OtherRuntime(
                f"{self.label} was given {source.label}, which lies on another device: copy it through the host"
            )
        copy_device(self.allocation.context, self, source, self.allocation.stream)

    def fill(self, value: int | float = 0) -> None:
        """Sets every element, by the widest memset that fits. Queued on the buffer's stream.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        self._check("fill")
        memset(self.allocation.context, self, value, self.allocation.stream)


def memset(context: Context, buffer: Buffer, value: int | float, stream: Stream) -> None:
    """Queues on ``stream`` a memset of every element of ``buffer`` to ``value``, 32 bits wide wherever the size allows
    (known failure K18).

    In a capture: recorded. Synchronizes: no. Allocates: no.
    """
    cu = context.cu
    if captures.active:
        captures.refuse_escape(f"the memset of {buffer.label}", stream)
    width, pattern = memset_pattern(buffer, value)
    function = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[width]
    with context.current():
        context.call(function, buffer.ptr, pattern, buffer.nbytes // width, stream.handle)


def copy_device(context: Context, target: Buffer, source: Buffer, stream: Stream) -> None:
    """Queues on ``stream`` a copy of ``source`` into ``target``, of the same size.

    In a capture: recorded. Synchronizes: no. Allocates: no.
    """
    if captures.active:
        captures.refuse_escape(f"the copy to {target.label}", stream)
    with context.current():
        context.call(context.cu.cuMemcpyDtoDAsync, target.ptr, source.ptr, target.nbytes, stream.handle)


def memset_pattern(buffer: Buffer, value: int | float) -> tuple[int, int]:
    """Width in bytes and pattern of the memset that fills ``buffer`` with ``value``."""
    item = np.array(0 if buffer.dtype.names else value, buffer.dtype if not buffer.dtype.names else np.uint8).tobytes()
    if buffer.dtype.names and value != 0:
        raise FoxhuntError(f"{buffer.label} holds structs: only 0 fills it; write an array with copy_from instead")
    for width in (4, 2, 1):
        if buffer.nbytes % width or buffer.ptr % width:
            continue
        unit = item if len(item) == width else (item * width)[:width] if len(item) < width else item[:width]
        if len(item) <= width or item == unit * (len(item) // width):
            return width, int.from_bytes(unit, "little")
    raise FoxhuntError(
        f"{buffer.label}: {value!r} is no repeated 32-bit pattern: write an array with copy_from instead"
    )


class MappedBuffer(Buffer):
    """Pinned host memory that kernels read or write in place.

    A value that a kernel writes is seen by the host only after the kernel is known to be done, or by the publish protocol:
    payload, ``__threadfence_system()``, sequence number, and a reader that checks the sequence on both sides (known
    failure K7). `host` is the raw NumPy view, for such readers.
    """

    @classmethod
    def allocate(cls, stream: Stream, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> MappedBuffer:
        """Pinned, mapped memory set to zero, of a stream's context. `Runtime.mapped` is the usual way.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        dims, kind = _shape(shape), np.dtype(dtype)
        nbytes = math.prod(dims) * kind.itemsize
        if nbytes <= 0:
            raise FoxhuntError(f"{label}: a buffer of shape {dims} holds nothing: every dimension must be at least 1")
        buffer = cls(Allocation(stream, nbytes, label, mapped=True), 0, dims, kind, label)
        buffer.host.view(np.uint8)[...] = 0
        return buffer

    @property
    def host(self) -> npt.NDArray[Any]:
        """The NumPy view of the memory itself, not a copy. It must not outlive the buffer. Outlives a dead context: what a kernel
        published before it died can be read."""
        if not self.allocation.alive:
            raise LifetimeError(f"{self.label} was freed: its host view is gone")
        if self.allocation.context._forked:  # no page of it is mapped there
            self.allocation.context.check_usable()
        raw = (ctypes.c_ubyte * self.nbytes).from_address(self.allocation.host_ptr + self.offset)
        return np.frombuffer(memoryview(raw), dtype=self.dtype).reshape(self.shape)

    def read(self, after: Event) -> npt.NDArray[Any]:
        """A copy, taken once the event is done. Synchronizes with that event.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        after.synchronize()
        return np.array(self.host)

    def poll(self) -> npt.NDArray[Any]:
        """The host view, after giving queued work a chance to move on (hostsim only runs late work when asked)."""
        sim = loader.hostsim()
        if sim is not None:
            sim.fxHostsimPoll()
        return self.host

    def to_numpy(self) -> npt.NDArray[Any]:
        """A host copy after all work on the buffer's stream.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self._check("to_numpy")
        self.allocation.stream.synchronize()
        return np.array(self.host)

    def copy_from(self, array: npt.ArrayLike) -> None:
        """Writes a host array of the same shape and dtype, after all work queued so far.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self._check("copy_from")
        source = np.asarray(array)
        if source.dtype != self.dtype or source.shape != self.shape:
            raise FoxhuntError(f"{self.label} is {self.dtype}{list(self.shape)}, the array {source.dtype}"
                               f"{list(source.shape)}: convert it first, nothing was copied")  # fmt: skip
        self.allocation.stream.synchronize()
        self.host[...] = source


def _shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)


__all__ = [
    "Allocation", "Buffer", "DeviceBuffer", "DriverError", "ForeignAllocation", "MappedBuffer", "copy_device",
    "live_allocations", "live_bytes", "memset",
]  # fmt: skip
