"""DLPack capsules, by ctypes: https://dmlc.github.io/dlpack/latest/python_spec.html

An exported capsule keeps the allocation alive until its consumer calls the deleter; an imported one keeps the producer's
tensor until we do. Knows nothing of streams: `Buffer.__dlpack__` and `foxhunt_rt.interop` order the work.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foxhunt_rt.driver.errors import FoxhuntError

LIBRARY = Path(__file__).resolve().parent.parent / "_native" / "libfoxhunt_dlpack.so"

CPU, CUDA, CUDA_HOST = 1, 2, 3
VERSION = (1, 1)
READ_ONLY = 1

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL}
_BF16 = np.dtype([("bf16", np.uint16)])  # as foxhunt_rt.kernels.abi.bf16


class DLTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64))  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor))  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # called with the GIL
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_incref = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", _api))

_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}
_exported: dict[int, tuple[Any, ...]] = {}  # address of the managed tensor -> what it keeps alive, and what to call


def _let_go(address: int | None) -> None:
    kept = _exported.pop(address or 0, None)
    if kept is not None:
        kept[-1]()


# What the native part calls, in its order.
_CALLED = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyCapsule_IsValid",
    "PyCapsule_GetPointer",
)
_release = _Release(_let_go)  # held for as long as the native part may call it


@dataclass(frozen=True)
class _Native:
    """libfoxhunt_dlpack.so and two addresses in it. Consumers enter Python through them alone."""

    library: ctypes.PyDLL
    deleter: int
    destructor: int


@functools.cache
def _native() -> _Native:
    try:
        library = ctypes.PyDLL(str(LIBRARY))
    except OSError as error:
        raise FoxhuntError(f"DLPack export needs foxhunt_rt/_native/{LIBRARY.name}, which cannot be loaded ({error}): run python "
                           "tools/build.py, or pip install .") from error  # fmt: skip
    calls = [getattr(_api, name) for name in _CALLED]
    library.fxDlpackOpen((ctypes.c_void_p * 7)(*(ctypes.cast(f, ctypes.c_void_p).value for f in (*calls, _release))))
    deleter, destructor = (
        ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (library.fxDlpackDelete, library.fxDlpackDestroy)
    )
    return _Native(library, deleter, destructor)


@atexit.register  # at import, so that it comes after whatever the program registers
def _at_exit() -> None:
    """Consumers may outlive the interpreter: from here on their calls do nothing, and what they look at is never freed."""
    if _native.cache_info().currsize:
        _native().library.fxDlpackClose()
    for kept in (_exported, _release):
        _incref(kept)


def export(ptr: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], *, versioned: bool,
           read_only: bool, keep: Any, released: Callable[[], None]) -> Any:  # fmt: skip
    """A capsule over memory. ``keep`` lives until the consumer lets go, then ``released`` is called, from any thread; after the
    interpreter's exit neither happens."""
    if dtype == _BF16 or dtype.name == "bfloat16":
        code, bits = _BFLOAT, 16
    elif dtype.names is None and dtype.kind in _CODES:
        code, bits = _CODES[dtype.kind], 8 * dtype.itemsize
    else:
        raise BufferError(f"DLPack has no type for {dtype}: take a view of it as bytes or numbers first")
    managed = _ManagedVersioned() if versioned else _Managed()
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    strides = (ctypes.c_int64 * max(len(shape), 1))(*(math.prod(shape[i + 1 :]) for i in range(len(shape))))
    managed.tensor = DLTensor(ptr, *device, len(shape), code, bits, 1, dims, strides, 0)
    native = _native()
    managed.deleter = native.deleter
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = VERSION
        managed.flags = READ_ONLY if read_only else 0
    elif read_only:
        raise BufferError("read-only memory needs a consumer that speaks DLPack 1.0")
    address = ctypes.addressof(managed)
    _exported[address] = (managed, dims, strides, keep, released)
    return _new(address, _NAMES[versioned], native.destructor)


@dataclass(frozen=True)
class Imported:
    """A consumed capsule. ``release`` must be called once, when nobody uses the memory any more."""

    ptr: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: tuple[int, int]
    read_only: bool
    release: Callable[[], None]


def consume(capsule: Any, label: str) -> Imported:
    """Takes a capsule over. Refuses what is no dense row-major array of numbers; then the producer keeps the memory."""
    versioned = bool(_is_valid(capsule, _NAMES[True]))
    if not versioned and not _is_valid(capsule, _NAMES[False]):
        raise FoxhuntError(f"{label}: __dlpack__ gave no unused DLPack capsule: a capsule is consumed once")
    address = _pointer(capsule, _NAMES[versioned])
    managed = (_ManagedVersioned if versioned else _Managed).from_address(address)
    read_only = False
    if isinstance(managed, _ManagedVersioned):
        if managed.major != VERSION[0]:
            raise FoxhuntError(f"{label}: DLPack {managed.major}.{managed.minor} is not supported: export version 1")
        read_only = bool(managed.flags & READ_ONLY)
    tensor = managed.tensor
    shape = tuple(int(tensor.shape[i]) for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(int(tensor.strides[i]) for i in range(tensor.ndim))
        dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        if math.prod(shape) and any(n > 1 and a != b for n, a, b in zip(shape, strides, dense, strict=True)):
            raise FoxhuntError(
                f"{label}: strides {strides} of shape {shape} are not dense row-major: pass a contiguous copy"
            )
    dtype = _dtype(tensor, label)
    _rename(capsule, _USED[versioned])

    def release() -> None:
        if managed.deleter:  # may be null, and may have become so
            _Deleter(managed.deleter)(address)  # without the GIL: who needs it takes it

    return Imported((tensor.data or 0) + tensor.byte_offset, shape, dtype, (tensor.device_type, tensor.device_id), read_only,
                    release)  # fmt: skip


def _dtype(tensor: DLTensor, label: str) -> np.dtype[Any]:
    kinds = {_INT: "i", _UINT: "u", _FLOAT: "f", _BOOL: "b"}
    if tensor.lanes == 1 and tensor.bits % 8 == 0:
        if tensor.code == _BFLOAT and tensor.bits == 16:
            return _BF16
        if tensor.code in kinds:
            try:
                return np.dtype(f"{kinds[tensor.code]}{tensor.bits // 8}")
            except TypeError:
                pass  # such as a float of one byte: named below
    raise FoxhuntError(f"{label}: DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) has no dtype here: "
                       "convert it first")  # fmt: skip


__all__ = ["CPU", "CUDA", "CUDA_HOST", "Imported", "VERSION", "consume", "export"]
