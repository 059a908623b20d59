"""Module and Function: one loaded instance of an image, and the kernels in it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

from foxhunt_rt.driver import captures
from foxhunt_rt.driver.context import Context
from foxhunt_rt.driver.errors import DriverError, LifetimeError
from foxhunt_rt.driver.stream import Stream


class Function:
    """A CUfunction. ``param_size`` is the size in bytes of its one struct argument, as the driver reports it, None where the
    driver cannot say.

    In a capture: refused. Synchronizes: no. Allocates: yes.
    """

    def __init__(self, module: Module, name: str) -> None:
        context = module.context
        cu = context.cu
        captures.refuse(f"loading {name}")
        self.module, self.name = module, name
        with context.current():
            self.handle = context.call(cu.cuModuleGetFunction, module.handle, name.encode())
            self.key = int(self.handle)
            # Loaded now, so that no lazy load happens inside a capture or between replays.
            if context.features.has("function_loading"):
                context.call(cu.cuFuncLoad, self.handle)
            self.param_size: int | None = None
            if context.features.has("parameter_sizes"):
                self.param_size = int(context.call(cu.cuFuncGetParamInfo, self.handle, 0)[1])
        self.max_threads = self.attribute("MAX_THREADS_PER_BLOCK")
        self._dynamic_shared = 0
        self._sealed = False

    def attribute(self, name: str) -> int:
        """A CUfunction_attribute by name, for example ``"LOCAL_SIZE_BYTES"``."""
        cu = self.module.context.cu
        key = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        with self.module.context.current():
            return int(self.module.context.call(cu.cuFuncGetAttribute, key, self.handle))

    def allow_dynamic_shared(self, nbytes: int) -> None:
        """Raises the limit of dynamic shared memory (never lowers it, never once a graph holds the function).

        In a capture: legal. Synchronizes: no. Allocates: may, an attribute is set above 48 KB.
        """
        if nbytes <= max(self._dynamic_shared, 48 * 1024):
            return
        if self._sealed:
            raise LifetimeError(f"{self.name}: {nbytes} bytes of dynamic shared memory asked for after build(): "
                                "launch it with that size in the plan")  # fmt: skip
        cu = self.module.context.cu
        key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self.module.context.current():
            self.module.context.call(cu.cuFuncSetAttribute, self.handle, key, nbytes)
        self._dynamic_shared = nbytes

    def seal(self) -> None:
        """From now on attributes are fixed: a built graph holds the function."""
        self._sealed = True

    def launch(self, grid: Sequence[int], block: Sequence[int], params: int, stream: Stream, shared: int = 0) -> None:
        """Queues the kernel on ``stream``: ``grid`` blocks of ``block`` threads, up to three sizes each, ``shared`` bytes
        of dynamic shared memory. ``params`` is the address of an array with one pointer, to the argument struct.
        The caller makes the context current.

        In a capture: recorded. Synchronizes: no. Allocates: no.
        """
        context = self.module.context
        gx, gy, gz = (*grid, 1, 1)[:3]
        bx, by, bz = (*block, 1, 1)[:3]
        if captures.active:
            captures.refuse_escape(f"the launch of {self.name}", stream)
        try:
            context.call(context.cu.cuLaunchKernel, self.handle, gx, gy, gz, bx, by, bz, shared, stream.handle,
                         params, 0)  # fmt: skip
        except DriverError as error:
            raise error.at(kernel=self.name, grid=tuple(grid), block=tuple(block)) from None


#: What the driver answers to an image that is not for its device.
_MISFITS = ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_INVALID_PTX",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")  # fmt: skip
_CUDA, _X86_64, _AARCH64 = 190, 62, 183  # e_machine of an ELF file


def architecture(image: bytes) -> str:
    """What an image was built for: ``"sm_90"`` of a cubin, ``"host"`` of one for hostsim, ``"ptx sm_90"``, or ``"unknown"``."""
    if image[:4] == b"\x7fELF" and len(image) >= 52:
        machine, flags = int.from_bytes(image[18:20], "little"), int.from_bytes(image[48:52], "little")
        if machine == _CUDA:  # the number moved by a byte with version 8 of the ABI, that is with CUDA 13
            return f"sm_{flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF}"
        return "host" if machine in (_X86_64, _AARCH64) else "unknown"
    target = re.search(rb"^\s*\.target\s+(sm_\w+)", image, re.MULTILINE)
    return f"ptx {target[1].decode()}" if target else "unknown"


def _unload(context: Context, handle: Any) -> None:
    if context.usable:
        with context.current():
            context.cu.cuModuleUnload(handle)


class Module:
    """One load of an image: its own functions, its own globals. Loading the same bytes again gives another module.

    In a capture: refused. Synchronizes: no. Allocates: yes.

    Parameters
    ----------
    context : Context
    image : bytes
        A cubin, PTX (NUL-terminated), or under hostsim an ELF shared object.
    name : str
        For messages.
    """

    def __init__(self, context: Context, image: bytes, name: str) -> None:
        captures.refuse(f"loading module {name}")
        self.context, self.name, self.size = context, name, len(image)
        keep = ctypes.create_string_buffer(image, len(image) + 1)
        try:
            with context.current():
                self.handle = context.call(context.cu.cuModuleLoadData, ctypes.addressof(keep))
        except DriverError as error:
            if error.name in _MISFITS:
                error.at(image=f"for {architecture(image)}", device=context.device.architecture)
            raise error.at(module=name) from None
        self.pins = 0
        self._functions: dict[str, Function] = {}
        self._finalizer = context.finalize(self, _unload, self.handle)

    def function(self, name: str) -> Function:
        """The kernel ``name``, loaded.

        In a capture: refused, the first time for a name. Synchronizes: no. Allocates: may, that first time.
        """
        if name not in self._functions:
            self._functions[name] = Function(self, name)
        return self._functions[name]

    def unload(self) -> None:
        """Unloads the module. Refused while a built graph holds one of its functions, and inside a capture.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        captures.refuse(f"unloading module {self.name}")
        if self.pins:
            raise LifetimeError(f"module {self.name} is used by {self.pins} built graph(s): close those first")
        self._finalizer()
