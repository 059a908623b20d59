"""Runtime: one device, its context and stream, its memory, modules and ledger. Where using this package begins."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt import driver, kernels
from foxhunt_rt.driver import (
    Buffer,
    Context,
    Device,
    DeviceBuffer,
    DriverError,
    Features,
    MappedBuffer,
    OtherRuntime,
    Stream,
    captures,
)
from foxhunt_rt.graph import launch_map
from foxhunt_rt.graph.child import Products, check_dims
from foxhunt_rt.graph.isolation import Isolation, Ledger
from foxhunt_rt.graph.modules import ModulePool

if TYPE_CHECKING:
    from foxhunt_rt.graph.plan import StepPlan


class Runtime:
    """The runtime on one device.

    Parameters
    ----------
    device : int or str
        Ordinal as the driver counts, after CUDA_VISIBLE_DEVICES; or a UUID, ``"GPU-..."`` or ``"MIG-..."``, or its beginning.
    isolation : Isolation or str
        ``"strict"`` (default), ``"audit"`` or ``"off"``.
    without : iterable of str
        Features of the driver to do without (`features`), to try a fallback where it is not needed.

    Raises
    ------
    foxhunt_rt.driver.DriverNotFound
        No driver can be used.
    foxhunt_rt.driver.DeviceNotFound
        There is no such device; lists those that this process sees.
    foxhunt_rt.driver.UnsupportedDevice
        The driver or the device lacks something that has no fallback (docs/support.md).

    Notes
    -----
    In a capture: legal. Synchronizes: no. Allocates: yes.

    Shares the device's primary context with PyTorch, JAX, CuPy and cuda.core. Work goes to one non-blocking stream,
    `stream`. Any thread may use a runtime, one at a time. A process may have several, one a device, each in a thread of its own
    if it likes; what one made is refused by the others (`OtherRuntime`), and no device reaches another's memory. `products`
    records the matrix products of `Child.gemm`; set by `foxhunt_rt.gemm.attach`.
    """

    def __init__(self, device: int | str = 0, isolation: Isolation | str = Isolation.STRICT, *,
                 without: Iterable[str] = ()) -> None:  # fmt: skip
        self.device = Device(device)
        self.context = Context(self.device, without)
        try:
            self.stream = Stream(self.context)
        except DriverError as error:
            self.context.close()
            if error.sticky:  # nothing of ours ran yet
                error.at(user="another library: the context was dead before this Runtime was made")
            raise
        self.modules = ModulePool(self.context)
        self.ledger = Ledger(Isolation(isolation))
        self._users: dict[str, UngraphedUser] = {}
        self._plans: weakref.WeakValueDictionary[str, StepPlan] = weakref.WeakValueDictionary()
        self.products: Products | None = None

    @property
    def driver_kind(self) -> str:
        """``"cuda"`` or ``"hostsim"``."""
        return driver.kind()

    @property
    def features(self) -> Features:
        """What the driver has for this device, as probed, and what is done without."""
        return self.context.features

    def check_own(self, user: str, *buffers: Buffer) -> None:
        """Refuses buffers that another runtime made.

        Raises
        ------
        foxhunt_rt.driver.OtherRuntime
        """
        for buffer in buffers:
            if not self._made(buffer):
                raise OtherRuntime(f"{user} was given {buffer.label}, which belongs to another runtime: make it with this one, "
                                   "and copy the contents through the host")  # fmt: skip

    def _made(self, buffer: Buffer) -> bool:
        return buffer.allocation.context is self.context

    def empty(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> DeviceBuffer:
        """Device memory with undefined contents.

        In a capture: refused. Synchronizes: no. Allocates: yes.

        Parameters
        ----------
        shape : int or sequence of int
            Every dimension at least 1.
        dtype : dtype_like
            Of structs too: `abi.dtype` gives those of the kernels.
        label : str
            What errors, the memory plan and the sanitizer call it.
        """
        return DeviceBuffer.allocate(self.stream, shape, dtype, label)

    def zeros(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> DeviceBuffer:
        """`Runtime.empty`, set to zero, in the order of the runtime's stream.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        buffer = self.empty(shape, dtype, label)
        buffer.fill(0)
        return buffer

    def array(self, array: npt.ArrayLike, label: str) -> DeviceBuffer:
        """A device copy of a host array. In a capture: refused. Synchronizes: yes. Allocates: yes."""
        source = np.ascontiguousarray(array)
        buffer = self.empty(source.shape or (1,), source.dtype, label)
        buffer.copy_from(source.reshape(buffer.shape))
        return buffer

    def mapped(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> MappedBuffer:
        """Pinned host memory that kernels address, set to zero. Parameters as `Runtime.empty`.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        return MappedBuffer.allocate(self.stream, shape, dtype, label)

    def plan(self, name: str = "step") -> StepPlan:
        """A new plan of children that become one launch."""
        from foxhunt_rt.graph.plan import StepPlan

        return StepPlan(self, self._unique(name))

    def _unique(self, name: str) -> str:
        """A name that no plan alive has: users of modules are named after their plan."""
        unique, n = name, 1
        while unique in self._plans:
            n += 1
            unique = f"{name}#{n}"
        return unique

    def ungraphed(self, user: str) -> UngraphedUser:
        """A named user that launches kernels directly, from module instances that no graph touches."""
        if user not in self._users:
            self._users[user] = UngraphedUser(self, user)
        return self._users[user]

    def synchronize(self) -> None:
        """Waits for all work on the runtime's stream. In a capture: refused. Synchronizes: yes. Allocates: no."""
        self.stream.synchronize()

    def close(self) -> None:
        """Waits for the stream and releases the context. Buffers and graphs of this runtime are dead afterwards.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        if self.context.usable:
            try:
                self.stream.synchronize()
            except DriverError:
                pass  # the context is dead: there is nothing left to wait for, and the cause was raised where it happened
        self.context.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class UngraphedUser:
    """Launches kernels one by one on the runtime's stream. Made by `Runtime.ungraphed`."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime, self.name = runtime, name
        self._functions: dict[str, driver.Function] = {}

    def launch(self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Mapping[str, Any],
               shared: int = 0) -> None:  # fmt: skip
        """Checks the arguments as `Child.launch` does and launches now.

        In a capture: refused. Synchronizes: no. Allocates: may, the kernel's module the first time.
        """
        captures.refuse(f"an ungraphed launch of {kernel}")
        check_dims(kernel, grid, block)
        packed = kernels.pack(kernel, args)
        self.runtime.check_own(self.name, *(u.buffer for u in packed.uses if isinstance(u.buffer, Buffer)))
        if launch_map.wanted():
            launch_map.note(self.name, packed)
        function = self._functions.get(kernel)
        context = self.runtime.context
        with context.current():
            if function is None:
                function = self.runtime.modules.function(f"ungraphed:{self.name}", kernel)
                self.runtime.ledger.ungraphed(function, self.name)
                self._functions[kernel] = function
            function.allow_dynamic_shared(shared)
            try:
                function.launch(grid, block, packed.params, self.runtime.stream, shared)
            except DriverError as error:
                raise error.at(user=self.name) from None
