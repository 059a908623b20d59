"""Memory of other libraries as buffers: DLPack, and the CUDA array interface for those who do not speak it.

A wrapped buffer keeps its owner alive until it is freed or collected, and a graph built on it keeps the buffer. An owner that
can move its data and says where it is, by a method ``data_ptr`` as PyTorch's tensors have, is asked before each launch of a step;
what another owner moves cannot be seen: wrap such memory again and rebuild.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from foxhunt_rt.driver import Buffer, DeviceBuffer, DriverError, FoxhuntError, MappedBuffer, captures, dlpack
from foxhunt_rt.driver.memory import ForeignAllocation
from foxhunt_rt.graph import Runtime


class ForeignMemoryError(FoxhuntError):
    """Memory of another library cannot be used as it is."""


def wrap(rt: Runtime, array: Any, label: str) -> Buffer:
    """A buffer over the memory of any array that speaks DLPack or the CUDA array interface. Copies nothing.

    In a capture: refused. Synchronizes: no. Allocates: may, host memory is page-locked.

    Parameters
    ----------
    rt : Runtime
        Its stream waits for what the producer has queued so far; the host waits only where the CPU wrote.
    array : object
        Dense, row-major, on the runtime's device, or in host memory: that is page-locked and mapped, so kernels read it over the
        bus (`Runtime.array` copies it instead).
    label : str

    Returns
    -------
    DeviceBuffer or MappedBuffer
        Read-only when the producer says so, or is JAX, whose arrays never change: then no child may declare to write it.

    Raises
    ------
    ForeignMemoryError
        It has neither protocol, or lies elsewhere, or is not dense.
    """
    if isinstance(array, Buffer):
        return array
    if hasattr(array, "__dlpack__"):
        return from_dlpack(rt, array, label)
    if hasattr(array, "__cuda_array_interface__"):
        return from_cuda_array_interface(rt, array, label)
    raise ForeignMemoryError(f"{label}: {type(array).__name__} has neither __dlpack__ nor __cuda_array_interface__: convert it "
                             "to an array, and copy with Runtime.array")  # fmt: skip


def to_numpy(rt: Runtime, array: Any, label: str) -> np.ndarray[Any, Any]:
    """Any array as a NumPy one: host memory as it is, device memory by a copy, after what its producer has queued.

    In a capture: legal, but refused for device memory. Synchronizes: may, for device memory. Allocates: no.

    Raises
    ------
    ForeignMemoryError
        NumPy cannot take it, or device memory that `wrap` cannot.
    """
    on_device = hasattr(array, "__cuda_array_interface__")
    if not on_device and hasattr(array, "__dlpack_device__") and not isinstance(array, np.ndarray):
        on_device = int(array.__dlpack_device__()[0]) == dlpack.CUDA
    if on_device:
        copied: np.ndarray[Any, Any] = wrap(rt, array, label).to_numpy()  # type: ignore[attr-defined]
        return copied
    try:
        if hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
            return np.from_dlpack(array)
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ForeignMemoryError(f"{label}: {str(error).strip()}: give an array that NumPy can read") from None


def from_dlpack(rt: Runtime, array: Any, label: str) -> Buffer:
    """`interop.wrap` by DLPack, with its parameters. In a capture: refused. Synchronizes: no. Allocates: may, host memory
    is page-locked.
    """
    captures.refuse(f"{label}: wrapping")
    kind, ordinal = (int(n) for n in array.__dlpack_device__())
    stream: dict[str, Any] = {}
    if kind == dlpack.CUDA:
        _check_device(rt, ordinal, label)
        stream = {"stream": int(rt.stream.handle)}
    elif kind not in (dlpack.CPU, dlpack.CUDA_HOST):
        raise ForeignMemoryError(f"{label}: DLPack device type {kind} is neither CPU nor CUDA: copy it to one of them")
    try:
        capsule = array.__dlpack__(**stream, max_version=dlpack.VERSION)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = array.__dlpack__(**stream)
    try:
        found = dlpack.consume(capsule, label)
    except FoxhuntError as error:
        raise ForeignMemoryError(str(error)) from None
    if type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):  # which does not set the flag
        found = dataclasses.replace(found, read_only=True)
    try:
        _check_size(found.shape, label)
        nbytes = math.prod(found.shape) * found.dtype.itemsize
        if kind == dlpack.CUDA:
            allocation = ForeignAllocation(rt.stream, found.ptr, nbytes, label, capsule, read_only=found.read_only,
                                           release=found.release, where=_where(array))  # fmt: skip
            return DeviceBuffer(allocation, 0, found.shape, found.dtype, label)
        return _host_memory(rt, found, nbytes, label, _where(array))
    except BaseException:
        found.release()
        raise


def _where(array: Any) -> Callable[[], int] | None:
    """What says where an array's data is now, for arrays that can move it."""
    where: Callable[[], int] | None = getattr(array, "data_ptr", None)
    return where


def _host_memory(rt: Runtime, found: dlpack.Imported, nbytes: int, label: str,
                 where: Callable[[], int] | None) -> MappedBuffer:  # fmt: skip
    """Host memory that kernels address: page-locked here, unless the driver knows it already."""
    context, cu = rt.context, rt.context.cu
    ours = not known_to_driver(rt, found.ptr)
    with context.current():
        if ours:
            try:
                context.call(cu.cuMemHostRegister, found.ptr, nbytes, cu.CU_MEMHOSTREGISTER_DEVICEMAP)
            except DriverError as error:
                raise ForeignMemoryError(f"{label}: {nbytes:,} bytes at {found.ptr:#x} cannot be page-locked ({error.name}): "
                                         "copy them with Runtime.array") from error  # fmt: skip
        try:
            ptr = int(context.call(cu.cuMemHostGetDevicePointer, found.ptr, 0)) if ours else found.ptr
        except DriverError:
            cu.cuMemHostUnregister(found.ptr)
            raise

    def release() -> None:
        if ours and context.usable:
            with context.current():
                cu.cuMemHostUnregister(found.ptr)
        found.release()

    allocation = ForeignAllocation(rt.stream, ptr, nbytes, label, found, host_ptr=found.ptr, read_only=found.read_only,
                                   release=release, where=where)  # fmt: skip
    return MappedBuffer(allocation, 0, found.shape, found.dtype, label)


def from_cuda_array_interface(rt: Runtime, array: Any, label: str) -> DeviceBuffer:
    """`wrap` by the CUDA array interface, version 2 or 3. Its stream is waited for by ours, not by the host.

    In a capture: refused. Synchronizes: no. Allocates: may, an event the first time it names a stream.
    """
    captures.refuse(f"{label}: wrapping")
    interface = array.__cuda_array_interface__
    version = interface.get("version", 0)
    if version < 2:
        raise ForeignMemoryError(
            f"{label}: __cuda_array_interface__ of version {version} is not supported: use version 3"
        )
    if interface.get("mask") is not None:
        raise ForeignMemoryError(f"{label}: masked arrays are not supported: fill the mask first")
    shape = tuple(int(n) for n in interface["shape"])
    dtype = np.dtype(interface["descr"] if np.dtype(interface["typestr"]).kind == "V" and "descr" in interface
                     else interface["typestr"])  # fmt: skip
    strides = interface.get("strides")
    dense = tuple(dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    _check_size(shape, label)
    if strides is not None and any(n > 1 and a != b for n, a, b in zip(shape, strides, dense, strict=True)):
        raise ForeignMemoryError(
            f"{label}: strides {tuple(strides)} of shape {shape} are not dense row-major: pass a contiguous copy"
        )
    ptr, read_only = int(interface["data"][0]), bool(interface["data"][1])
    if not known_to_driver(rt, ptr):
        raise ForeignMemoryError(f"{label}: {ptr:#x} is no memory of the driver in use ({rt.driver_kind}): allocate it on device "
                                 f"{rt.device.ordinal}")  # fmt: skip
    stream = interface.get("stream")
    if stream == 0:
        raise ForeignMemoryError(
            f"{label}: stream 0 of __cuda_array_interface__ is ambiguous: give 1 or 2, or a handle"
        )
    if stream is not None and stream != int(rt.stream.handle):
        rt.stream.wait(int(stream))
    allocation = ForeignAllocation(rt.stream, ptr, math.prod(shape) * dtype.itemsize, label, array, read_only=read_only,
                                   where=_where(array))  # fmt: skip
    return DeviceBuffer(allocation, 0, shape, dtype, label)


def known_to_driver(rt: Runtime, ptr: int) -> bool:
    """Whether an address lies in memory that the driver allocated or page-locked."""
    cu = rt.context.cu
    with rt.context.current():
        status, kind = cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr)
    return not status and bool(int(kind or 0))


def _check_device(rt: Runtime, ordinal: int, label: str) -> None:
    if rt.driver_kind != "cuda" or ordinal != rt.device.ordinal:
        here = (
            f"device {rt.device.ordinal}" if rt.driver_kind == "cuda" else "hostsim, whose device memory is the CPU's"
        )
        raise ForeignMemoryError(f"{label} lies on CUDA device {ordinal}, the runtime is on {here}: move it there")


def _check_size(shape: tuple[int, ...], label: str) -> None:
    if not math.prod(shape):
        raise ForeignMemoryError(
            f"{label}: a buffer of shape {shape} holds nothing: every dimension must be at least 1"
        )


__all__ = [
    "ForeignMemoryError",
    "from_cuda_array_interface",
    "from_dlpack",
    "known_to_driver",
    "to_numpy",
    "wrap",
]
