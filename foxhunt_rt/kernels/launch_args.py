"""Packs a kernel's arguments into its C struct, and checks them before the driver sees them.

A wrong argument is a Python error here, not an illegal address after the launch (known failure K5). Pointers are given
as buffers, never as numbers, so that element type, size and liveness can be checked and the use be recorded: who reads
and who writes what comes from here.
"""

from __future__ import annotations

import ctypes
import operator
import struct as c_struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from foxhunt_rt._names import choose
from foxhunt_rt.kernels import abi as abi_module
from foxhunt_rt.kernels.abi import Abi, Field, StructInfo
from foxhunt_rt.kernels.errors import AbiError, ArgumentError

__all__ = ["BufferLike", "PackedArgs", "PointerUse", "check_param_size", "pack"]

_INTEGERS = {
    "int32_t": ("<i", -(2**31), 2**31 - 1),
    "uint32_t": ("<I", 0, 2**32 - 1),
    "int64_t": ("<q", -(2**63), 2**63 - 1),
    "uint64_t": ("<Q", 0, 2**64 - 1),
}
_FLOATS = {"float": "<f", "double": "<d"}


class BufferLike(Protocol):
    """What a pointer argument is: device memory that knows its address, size, dtype and whether it is still there."""

    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def label(self) -> str: ...
    @property
    def alive(self) -> bool: ...


@dataclass(frozen=True)
class PointerUse:
    """One pointer of one launch: `nbytes` from `ptr` are read ("in"), written ("out") or both ("inout")."""

    field: str
    direction: str
    ptr: int
    nbytes: int
    buffer: BufferLike


class PackedArgs:
    """The argument struct in host memory, kept alive with the buffers it names.

    Attributes
    ----------
    kernel : str
    size : int
        Bytes of the struct.
    address : int
        Of the struct; valid while this object lives.
    params : int
        Address of the one-element pointer array that `cuLaunchKernel` takes as kernelParams.
    uses : list of PointerUse
    """

    def __init__(self, kernel: str, data: bytearray, uses: list[PointerUse]) -> None:
        self.kernel, self.size, self.uses = kernel, len(data), uses
        words = -(-len(data) // 8)  # 8-byte words, so that the struct is aligned
        self._struct = (ctypes.c_uint64 * words).from_buffer_copy(bytes(data).ljust(8 * words, b"\0"))
        self.address = ctypes.addressof(self._struct)
        self._params = ctypes.c_void_p(self.address)
        self.params = ctypes.addressof(self._params)

    @property
    def buffer(self) -> bytes:
        """A copy of the struct's bytes."""
        return bytes(memoryview(self._struct).cast("B")[: self.size])


def pack(kernel: str, args: Mapping[str, Any], abi: Abi | None = None) -> PackedArgs:
    """Checks and packs the arguments of one launch.

    Parameters
    ----------
    kernel : str
        Its struct is ``<kernel>_args``.
    args : mapping
        Every field by name, padding left out: a buffer for a pointer (None where the header says ``optional``), a
        number for a scalar.
    abi : Abi, optional
        The package's own when left out.

    Raises
    ------
    ArgumentError
        Names the kernel, the field, and what to do.
    """
    abi = abi or abi_module.default()
    info = abi.struct(f"{kernel}_args")
    _check_names(kernel, info, args)
    data = bytearray(info.size)
    scalars: dict[str, int] = dict(abi.constants)
    for field in info.fields:
        if not field.is_pointer and not field.is_pad:
            value = args[field.name]
            _pack_scalar(kernel, field, value, data)
            if field.ctype in _INTEGERS and not field.length:
                scalars[field.name] = operator.index(value)
    uses = []
    for field in info.fields:
        if field.is_pointer:
            use = _pointer(kernel, field, args[field.name], scalars, abi)
            if use is not None:
                c_struct.pack_into("<Q", data, field.offset, use.ptr)
                uses.append(use)
    return PackedArgs(kernel, data, uses)


def check_param_size(kernel: str, driver_size: int, abi: Abi | None = None) -> None:
    """Compares the header's struct with the size that `cuFuncGetParamInfo` gives for the loaded kernel.

    Raises
    ------
    AbiError
        When they differ: the image was compiled with another header.
    """
    size = (abi or abi_module.default()).struct(f"{kernel}_args").size
    if size != driver_size:
        raise AbiError(
            f"{kernel}: the loaded image takes {driver_size} bytes of arguments, the header says {size}: "
            "rebuild with `python tools/build.py`"
        )


def _check_names(kernel: str, info: StructInfo, args: Mapping[str, Any]) -> None:
    known = [field.name for field in info.fields if not field.is_pad]
    for name in args:
        if name not in known:
            raise ArgumentError(kernel, name, f"no such argument: {choose(name, known, 'its fields')}")
    for field in info.fields:
        if field.name in args or field.is_pad:
            continue
        mend = "give a buffer"
        if field.optional or field.if_any:
            mend = "give a buffer, or None to leave it out"
        elif not field.is_pointer:
            mend = "give a number"
        raise ArgumentError(kernel, field.name, f"missing: {mend}")


def _pack_scalar(kernel: str, field: Field, value: Any, data: bytearray) -> None:
    if not field.length:
        _pack_number(kernel, field, value, data, field.offset)
        return
    values = list(value) if isinstance(value, (list, tuple, np.ndarray)) else None
    if values is None or len(values) != field.length:
        raise ArgumentError(kernel, field.name, f"give a sequence of {field.length} numbers")
    for index, element in enumerate(values):
        _pack_number(kernel, field, element, data, field.offset + index * (field.size // field.length))


def _pack_number(kernel: str, field: Field, value: Any, data: bytearray, offset: int) -> None:
    if field.ctype in _FLOATS:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ArgumentError(kernel, field.name, f"{value!r} is no number: give a float")
        try:
            c_struct.pack_into(_FLOATS[field.ctype], data, offset, float(value))
        except OverflowError:
            raise ArgumentError(
                kernel, field.name, f"{value!r} does not fit {field.ctype}: give a smaller one"
            ) from None
        return
    code, low, high = _INTEGERS[field.ctype]
    try:
        number = operator.index(value)  # refuses floats, also whole ones, and NumPy floats
    except TypeError:
        raise ArgumentError(kernel, field.name, f"{value!r} is no integer: give an int for {field.ctype}") from None
    if not low <= number <= high:
        raise ArgumentError(kernel, field.name, f"{number} does not fit {field.ctype}: give {low} to {high}")
    c_struct.pack_into(code, data, offset, number)


def _pointer(kernel: str, field: Field, value: Any, scalars: Mapping[str, int], abi: Abi) -> PointerUse | None:
    name = field.name
    if value is None:
        if field.optional:
            return None
        if field.if_any and field.count is not None:
            if not (count := _elements(kernel, field, scalars)):
                return None
            raise ArgumentError(kernel, name, f"None, but the launch touches {count:,} elements ([{field.count.text}]): give a "
                                "buffer (None is for where there are none)")  # fmt: skip
        raise ArgumentError(kernel, name, "None, but the kernel uses it: give a buffer (None is for optional fields)")
    if not all(hasattr(value, attribute) for attribute in ("alive", "label", "ptr", "nbytes", "dtype")):
        what = "a raw address" if isinstance(value, (int, np.integer)) else f"a {type(value).__name__}"
        raise ArgumentError(kernel, name, f"{what}: give a DeviceBuffer, a MappedBuffer or a view of one")
    if not value.alive:
        raise ArgumentError(kernel, name, f"buffer {value.label} was freed: give a live one")
    if value.ptr == 0:
        raise ArgumentError(kernel, name, f"buffer {value.label} has a null address: give an allocated one")
    dtype = abi.element_dtype(field)
    if not _same_element(value.dtype, dtype):
        raise ArgumentError(
            kernel, name, f"buffer {value.label} holds {abi.dtype_name(value.dtype)}, the kernel takes "
            f"{abi.dtype_name(dtype)}: give one of that dtype, or .view() it",
        )  # fmt: skip
    alignment = 8 if dtype.names and field.element != "bf16" else dtype.itemsize
    if value.ptr % min(alignment, 8):
        raise ArgumentError(kernel, name, f"buffer {value.label} is not aligned to {alignment} bytes: use another view")
    if field.count is None:
        return PointerUse(name, field.direction, value.ptr, value.nbytes, value)
    nbytes = _elements(kernel, field, scalars) * dtype.itemsize
    if nbytes > value.nbytes:
        raise ArgumentError(
            kernel, name, f"buffer {value.label} has {value.nbytes:,} bytes, the launch touches {nbytes:,} "
            f"([{field.count.text}] of {field.element}): give a larger one or smaller sizes",
        )  # fmt: skip
    return PointerUse(name, field.direction, value.ptr, nbytes, value)


def _same_element(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    if wanted == abi_module.bf16:
        return given == wanted or given.name == "bfloat16"
    return given == wanted


def _elements(kernel: str, field: Field, scalars: Mapping[str, int]) -> int:
    assert field.count is not None
    try:
        count = field.count.evaluate(scalars)
    except ZeroDivisionError:
        raise ArgumentError(kernel, field.name, f"[{field.count.text}] divides by zero: give sizes above 0") from None
    if count < 0:
        raise ArgumentError(kernel, field.name, f"[{field.count.text}] is {count} elements: give sizes of at least 0")
    return count
