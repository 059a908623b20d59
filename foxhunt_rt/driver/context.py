"""Device and Context.

The device's primary context by default, so that PyTorch, JAX, CuPy and cuda.core share it. Every public entry makes the
context current and puts back what was current.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from foxhunt_rt.driver import captures, loader
from foxhunt_rt.driver.calls import call, counts, error_for
from foxhunt_rt.driver.errors import ContextDead, DeviceNotFound, DriverError, FoxhuntError, LifetimeError
from foxhunt_rt.driver.features import Features, check_device

_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_died: dict[int, DriverError] = {}  # first cause by device: its primary context is dead for the rest of this process


def _after_fork_in_child() -> None:
    _died.clear()  # a child has no context yet, only contexts of its parent
    for context in _contexts:
        context._forked, context.usable = True, False


os.register_at_fork(after_in_child=_after_fork_in_child)


_ending = False


def _at_exit() -> None:
    """Destroys what is left, the newest first, when the interpreter ends.

    Daemon threads still run at this point, and may be inside a launch: when there is one, everything is left to the end of the
    process, and a thread that comes back for more waits for that end, as CPython lets it wait.
    """
    global _ending
    alone = all(t is threading.current_thread() or not t.is_alive() for t in threading.enumerate())
    for context in _contexts:
        if alone and not context._forked and not captures.active:
            context._destroy_owned()
    _ending = True
    for context in _contexts:
        context.usable = False


atexit.register(_at_exit)


def _park() -> None:
    """Ends the calling thread's work for good, unless it is the one that ends the interpreter."""
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


def _quietly(destroy: Callable[..., object], *args: Any) -> None:
    """A destructor never raises: what it could not destroy goes with the context, and the others still get their turn."""
    with contextlib.suppress(FoxhuntError):
        destroy(*args)


def _finish(context: Context, number: int, destroy: Callable[..., object], *args: Any) -> None:
    """A destructor may run at any moment, so also inside a capture, where nothing is freed: then it waits for the end of that."""
    context._owned.pop(number, None)
    if captures.active and not context._closing:
        captures.defer(context, lambda: _quietly(destroy, context, *args))
    else:
        _quietly(destroy, context, *args)


class Device:
    """One device of the driver in use.

    Parameters
    ----------
    which : int or str
        Index as the driver counts, after CUDA_VISIBLE_DEVICES; or a UUID as nvidia-smi prints it, ``"GPU-..."`` or
        ``"MIG-..."``, of which a unique beginning is enough.

    Raises
    ------
    DeviceNotFound
        There is none; lists those that this process sees.
    """

    def __init__(self, which: int | str = 0) -> None:
        self._cu = loader.load()
        count = int(call(self._cu.cuDeviceGetCount))
        self.ordinal = self._find(which, count) if isinstance(which, str) else int(which)
        if not 0 <= self.ordinal < count:
            raise DeviceNotFound(f"there is no device {which}: {_listed(self._cu, count)}")
        self.handle = call(self._cu.cuDeviceGet, self.ordinal)

    def _find(self, uuid: str, count: int) -> int:
        found = [i for i in range(count) if matches(uuid, device_uuid(self._cu, i))]
        if len(found) > 1:
            raise DeviceNotFound(f"{uuid} is the beginning of several UUIDs: {_listed(self._cu, count)}")
        if not found:
            hint = ("; a MIG instance is seen when CUDA_VISIBLE_DEVICES names it before the process starts"
                    if uuid.upper().startswith("MIG-") else "")  # fmt: skip
            raise DeviceNotFound(f"there is no device {uuid}: {_listed(self._cu, count)}{hint}")
        return found[0]

    def attribute(self, name: str) -> int:
        """A CUdevice_attribute by name, for example ``"MULTIPROCESSOR_COUNT"``."""
        key = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(self._cu.cuDeviceGetAttribute, key, self.handle))

    @property
    def name(self) -> str:
        """As the driver says it, for example ``"NVIDIA H200"``."""
        return str(call(self._cu.cuDeviceGetName, 256, self.handle).split(b"\0")[0].decode())

    @property
    def uuid(self) -> str:
        """``"GPU-..."``, or ``"MIG-..."`` of a MIG instance: the same in every process and in NVML, whatever the ordinal."""
        return device_uuid(self._cu, self.ordinal)

    @property
    def architecture(self) -> str:
        """``"sm_90"`` on a GPU of compute capability 9.0, ``"host"`` under hostsim."""
        if loader.kind() == "hostsim":
            return "host"
        return f"sm_{self.attribute('COMPUTE_CAPABILITY_MAJOR')}{self.attribute('COMPUTE_CAPABILITY_MINOR')}"

    @property
    def total_memory(self) -> int:
        """Bytes of device memory."""
        return int(call(self._cu.cuDeviceTotalMem, self.handle))

    @property
    def pci_bus_id(self) -> str:
        """``"0000:3B:00.0"``: what NVML finds the same GPU by, since the two number GPUs differently."""
        return str(call(self._cu.cuDeviceGetPCIBusId, 32, self.handle).split(b"\0")[0].decode())

    @property
    def driver_version(self) -> int:
        """CUDA version of the driver, 13000 for 13.0."""
        return int(call(self._cu.cuDriverGetVersion))


def device_uuid(cu: Any, ordinal: int) -> str:
    """UUID of a device by ordinal. Creates no context."""
    device = call(cu.cuDeviceGet, ordinal)
    name = bytes(call(cu.cuDeviceGetName, 256, device)).split(b"\0")[0]
    # cuDeviceGetUuid gives a MIG instance's own UUID and not whether it is one; the driver puts that into the name.
    kind = "MIG" if b" MIG " in name else "GPU"
    return f"{kind}-{uuid.UUID(bytes=bytes(call(cu.cuDeviceGetUuid, device).bytes))}"


def matches(given: str, uuid_text: str) -> bool:
    """Whether ``given`` is a UUID of nvidia-smi or the beginning of one, as in CUDA_VISIBLE_DEVICES."""
    return len(given) > len("GPU-") and uuid_text.lower().startswith(given.lower())


def _listed(cu: Any, count: int) -> str:
    def line(i: int) -> str:
        name = bytes(call(cu.cuDeviceGetName, 256, call(cu.cuDeviceGet, i))).split(b"\0")[0].decode()
        return f"{i} ({device_uuid(cu, i)}, {name})"

    return f"give one that this process sees: {', '.join(map(line, range(count))) or 'none'}"


class Context:
    """The primary context of a device, retained until `close`.

    In a capture: legal. Synchronizes: no. Allocates: yes.

    Parameters
    ----------
    device : Device
    without : iterable of str
        Features of the driver to do without; see `Features`.

    Attributes
    ----------
    features : Features
    usable : bool
        False once it is dead, closed, or another process's; `check_usable` says which.

    Raises
    ------
    UnsupportedDevice
        The driver or the device lacks something that has no fallback.
    ContextDead
        A sticky error killed it earlier in this process. "To continue using CUDA, the process must be terminated and relaunched"
        (CUDA driver API, CUresult), whoever releases or resets it meanwhile.
    """

    def __init__(self, device: Device, without: Iterable[str] = ()) -> None:
        if (first := _died.get(device.ordinal)) is not None:
            raise ContextDead(first.code, first.name, first.text, first.call, first.where)
        self.device = device
        self.cu = loader.load()
        check_device(device)
        self.features = Features(self, without)
        self.handle = call(self.cu.cuDevicePrimaryCtxRetain, device.handle)
        self._get_current = self.cu.cuCtxGetCurrent
        self.usable = True
        self._dead: DriverError | None = None
        self._forked = False
        self.closed = self._closing = False
        self._owned: dict[int, weakref.finalize[..., Any]] = {}  # by number, in the order of making
        self._numbers = itertools.count()
        _contexts.add(self)

    def call(self, function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
        """`foxhunt_rt.driver.call` for this context: refuses at once, with the first cause, when it is dead."""
        self.check_usable()
        try:
            return call(function, *args)
        except DriverError as error:
            self.note(error)
            raise

    def raise_for(self, status: Any, call_name: str) -> None:
        """Raises for a status that a hot path looked at itself; does nothing for CUDA_SUCCESS."""
        if status:
            self.check_usable()
            error = error_for(int(status), call_name)
            self.note(error)
            raise error

    def note(self, error: DriverError) -> None:
        """Remembers the first sticky error: it is the cause, those after it are its echo."""
        if error.sticky and self._dead is None:
            self._dead, self.usable = error, False
            _died.setdefault(self.device.ordinal, error)

    def check_usable(self) -> None:
        """Raises with the reason when the context is not `usable`."""
        if self._dead is not None:
            first = self._dead
            raise ContextDead(first.code, first.name, first.text, first.call, first.where)
        if self._forked:
            raise LifetimeError("this CUDA context belongs to the parent process: fork before the first Runtime is made, "
                                "or start workers with the spawn method")  # fmt: skip
        if _ending:
            _park()
            raise LifetimeError("the interpreter is ending: use the device before that")
        if self.closed:
            raise LifetimeError("the context is closed: create a new Runtime")

    def current(self) -> Current:
        """Makes this context current in this thread for a with block, and restores what was current."""
        return Current(self)

    @property
    def is_current(self) -> bool:
        """Whether this context is current in this thread: one driver call."""
        status, handle = self._get_current()
        if handle == self.handle:
            return True
        self.raise_for(status, "cuCtxGetCurrent")
        return False

    def finalize(self, owner: object, destroy: Callable[..., object], *args: Any) -> weakref.finalize[..., Any]:
        """Calls ``destroy(context, *args)`` once: when ``owner`` is collected, when the result is called, at `close`, or at
        interpreter exit, whichever comes first."""
        number = next(self._numbers)
        finalizer = weakref.finalize(owner, _finish, self, number, destroy, *args)
        finalizer.atexit = False  # `_at_exit` decides
        self._owned[number] = finalizer
        return finalizer

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        with self.current():
            free, total = self.call(self.cu.cuMemGetInfo)
        return int(free), int(total)

    def close(self) -> None:
        """Destroys what was made in this context, the newest first, and releases the primary context, which may live on when
        another library retains it. Memory that a DLPack consumer holds stays. Idempotent; quiet when the context is dead.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        if self.closed or self._forked:
            return
        captures.refuse("closing the runtime")
        self._destroy_owned()
        self.closed, self.usable = True, False
        self.cu.cuDevicePrimaryCtxRelease(self.device.handle)

    def _destroy_owned(self) -> None:
        # Nothing can wait any more, though another thread may be capturing in a context of its own.
        self._closing = True
        for destroy in captures.take_deferred(self):
            destroy()
        for finalizer in reversed(list(self._owned.values())):
            entry = finalizer.peek()
            if entry is not None and not getattr(entry[0], "exports", 0):
                finalizer()
        self._owned.clear()


class Current:
    """What `Context.current` returns. A class, not a generator: entering one that is current already costs 0.5 us."""

    __slots__ = ("_context", "_pushed")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pushed = False

    def __enter__(self) -> None:
        context = self._context
        if not context.usable:
            context.check_usable()
        if not context.is_current:
            try:
                context.call(context.cu.cuCtxPushCurrent, context.handle)
            except BaseException:
                if context.is_current:  # interrupted just after it
                    context.cu.cuCtxPopCurrent()
                raise
            self._pushed = True

    def __exit__(self, *error: object) -> None:
        if self._pushed:  # not by `call`: an interrupt would find more time to come before it
            status = self._context.cu.cuCtxPopCurrent()[0]
            counts["cuCtxPopCurrent"] += 1
            if status and not self._context._forked:
                failure = error_for(int(status), "cuCtxPopCurrent")
                self._context.note(failure)
                raise failure
