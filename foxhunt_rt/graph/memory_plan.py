"""How much memory a program will take, label by label, before anything is allocated and without a driver.

`PlanningRuntime` stands in for `Runtime`: the same code that makes buffers, plans and graphs runs against it, and nothing but the
list of what would be allocated comes of it. So the list cannot drift from the program, and a size that is too large is refused at
once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from foxhunt_rt import kernels
from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError, MappedBuffer
from foxhunt_rt.graph.child import Child, check_dims
from foxhunt_rt.graph.conditional import Flag, LoopState
from foxhunt_rt.graph.plan import StepPlan
from foxhunt_rt.graph.runtime import Runtime
from foxhunt_rt.graph.state import State
from foxhunt_rt.graph.step import StepGraph

#: cuMemAlloc aligns to this (CUDA C++ Programming Guide, "Device Memory Accesses"); small buffers take that much.
ALIGNMENT = 256


class MemoryExceeded(FoxhuntError):
    """A plan does not fit; names its largest items."""


@dataclass(frozen=True)
class Item:
    """One allocation, or the instances of one module image.

    Attributes
    ----------
    label : str
    nbytes : int
    kind : str
        ``"device"``, ``"mapped"`` (pinned host memory) or ``"module"``.
    """

    label: str
    nbytes: int
    kind: str


@dataclass(frozen=True)
class MemoryPlan:
    """What will be allocated.

    Attributes
    ----------
    items : tuple of Item
        What stays allocated, largest first.
    peak_bytes : int
        The most device memory that buffers hold at any one time, those included that are given back soon.
    """

    items: tuple[Item, ...]
    peak_bytes: int = 0

    def total(self, *kinds: str) -> int:
        """Bytes of some kinds, each allocation rounded up to `ALIGNMENT`; of all without an argument."""
        return sum(-(-i.nbytes // ALIGNMENT) * ALIGNMENT for i in self.items if not kinds or i.kind in kinds)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device: allocations and module images. Context and executable graphs are the driver's."""
        return self.total("device", "module")

    def check(self, limit: int) -> None:
        """Refuses a plan above ``limit`` bytes of device memory.

        Raises
        ------
        MemoryExceeded
            With the three largest items.
        """
        needed = max(self.device_bytes, self.peak_bytes + self.total("module"))
        if needed > limit:
            largest = ", ".join([f"{i.label} {i.nbytes:,}" for i in self.items if i.kind != "mapped"][:3])
            raise MemoryExceeded(f"{needed:,} bytes are needed and {limit:,} are there; the largest are {largest}: "
                                 "make those smaller")  # fmt: skip

    def summary(self) -> str:
        """One line: totals, and the three largest items."""
        largest = ", ".join(f"{i.label} {i.nbytes:,}" for i in self.items[:3])
        return (f"{self.device_bytes:,} bytes on the device ({self.total('module'):,} of them modules), pinned host "
                f"{self.total('mapped'):,}; the largest are {largest}")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: totals, and items by kind and label."""
        return {
            "device_bytes": self.device_bytes,
            "peak_bytes": self.peak_bytes,
            "buffer_bytes": self.total("device"),
            "module_bytes": self.total("module"),
            "mapped_bytes": self.total("mapped"),
            "alignment": ALIGNMENT,
            "items": [{"label": i.label, "bytes": i.nbytes, "kind": i.kind} for i in self.items],
        }

    def text(self) -> str:
        """A table of labels; allocations with one label stand together."""
        rows: dict[tuple[str, str], list[int]] = {}
        for item in self.items:
            rows.setdefault((item.label, item.kind), []).append(item.nbytes)
        ordered = sorted(rows.items(), key=lambda row: -sum(row[1]))
        lines = [f"{'label':<44} {'bytes':>16} {'pieces':>6}  kind"]
        lines += [f"{label:<44} {sum(sizes):>16,} {len(sizes):>6}  {kind}" for (label, kind), sizes in ordered]
        return "\n".join([*lines, f"device {self.device_bytes:,} bytes ({self.total('module'):,} of them modules), pinned host "
                          f"{self.total('mapped'):,}"])  # fmt: skip


class _NoStream:
    """The stream of a runtime that runs nothing."""

    capturing, done = False, True

    def synchronize(self) -> None:
        """Nothing was queued."""


class _NoAllocation:
    """An address range that nobody has. It leaves the list when the last reference to it goes, like an `Allocation`."""

    read_only, exports, pins = False, 0, 0

    def __init__(self, runtime: PlanningRuntime, ptr: int, item: Item) -> None:
        self.stream, self.ptr, self.item = runtime.stream, ptr, item
        self.nbytes, self.label, self.mapped = item.nbytes, item.label, item.kind == "mapped"
        self._finalizer = weakref.finalize(self, runtime._items.pop, ptr)

    @property
    def alive(self) -> bool:
        return self._finalizer.alive

    def free(self) -> None:
        """Takes it off the list."""
        self._finalizer()


class PlannedBuffer(DeviceBuffer):
    """A `DeviceBuffer` without memory: reads as zeros, and forgets what is written."""

    def copy_from(self, array: npt.ArrayLike) -> None:
        """Checks shape and dtype, and copies nothing."""
        source = np.asarray(array)
        if source.dtype != self.dtype or source.shape != self.shape:
            raise FoxhuntError(f"{self.label} is {self.dtype}{list(self.shape)}, the array {source.dtype}{list(source.shape)}: "
                               "convert it first")  # fmt: skip

    def to_numpy(self) -> npt.NDArray[Any]:
        return np.zeros(self.shape, self.dtype)

    def copy_from_device(self, source: Any) -> None:
        pass

    def fill(self, value: int | float = 0) -> None:
        pass


class PlannedMappedBuffer(MappedBuffer):
    """A `MappedBuffer` without pinned memory."""

    @property
    def host(self) -> npt.NDArray[Any]:
        """Zeros."""
        return np.zeros(self.shape, self.dtype)

    def poll(self) -> npt.NDArray[Any]:
        return self.host

    def to_numpy(self) -> npt.NDArray[Any]:
        return self.host

    def copy_from(self, array: npt.ArrayLike) -> None:
        pass


class _PlannedUser:
    """Checks ungraphed launches, and counts the modules they would load."""

    def __init__(self, runtime: PlanningRuntime, name: str) -> None:
        self.runtime, self.name = runtime, name

    def launch(
        self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Mapping[str, Any], shared: int = 0
    ) -> None:
        check_dims(kernel, grid, block)
        kernels.pack(kernel, args)
        self.runtime.load(f"ungraphed:{self.name}", [kernel])


class _PlannedStep:
    """Stands where a `StepGraph` would: it can be asked for its state, closed, and nothing else."""

    def __init__(self, plan: StepPlan, steps_per_launch: int, loop: LoopState | None) -> None:
        self.plan, self.runtime, self.steps_per_launch = plan, plan.runtime, steps_per_launch
        self._loop = loop
        self.children: list[Child] = plan.sequence()
        self.state = State((b for c in self.children for b in (*c.writes, *c.private)), plan.volatile_fields)

    def close(self) -> None:
        """There is nothing to destroy."""


class _PlannedPlan(StepPlan):
    """Records children as ever; building counts modules."""

    def build(self, *, total_order: bool = False, ungraphed: bool = True, steps_per_launch: int = 1,
              stop: Flag | None = None, decisions: str = "auto") -> StepGraph:  # fmt: skip
        runtime = cast(PlanningRuntime, self.runtime)
        for child in self.sequence():
            for user in [self.user(child), *([f"{self.user(child)}/ungraphed"] if ungraphed else [])]:
                runtime.load(user, child.kernels)
        conditions = ["set_conditions"] * any(c.when for c in self.sequence())
        loop = LoopState(self.runtime, self.name, steps_per_launch, stop) if steps_per_launch > 1 else None
        if loop is not None:
            conditions += ["begin_loop", "next_step"]
        runtime.load(f"{self.name}/conditions", conditions)
        return cast(StepGraph, _PlannedStep(self, steps_per_launch, loop))


class PlanningRuntime(Runtime):
    """A `Runtime` that allocates, loads and launches nothing, and lists what it would. Loads no driver.

    Parameters
    ----------
    architecture : str
        Whose images would be loaded, for example ``"sm_90"`` or ``"host"``.
    """

    def __init__(self, architecture: str = "host") -> None:
        self.architecture = architecture
        self.stream = _NoStream()  # type: ignore[assignment]
        self._users, self._plans, self.products = {}, weakref.WeakValueDictionary(), None
        self._items: dict[int, Item] = {}  # by address
        self._peak = 0
        self._modules: dict[tuple[str, str], Item] = {}
        self._next = itertools.count(1)

    @property
    def driver_kind(self) -> str:
        """``"none"``."""
        return "none"

    def _made(self, buffer: Buffer) -> bool:
        return buffer.allocation.stream is self.stream

    def _allocation(
        self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str, mapped: bool
    ) -> tuple[Any, ...]:
        dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
        kind = np.dtype(dtype)
        nbytes = int(np.prod(dims, dtype=object)) * kind.itemsize
        if nbytes <= 0:
            raise FoxhuntError(f"{label}: a buffer of shape {dims} holds nothing: every dimension must be at least 1")
        item, ptr = (
            Item(label, nbytes, "mapped" if mapped else "device"),
            next(self._next) << 44,
        )  # ranges that cannot meet
        self._items[ptr] = item
        self._peak = max(self._peak, MemoryPlan(tuple(self._items.values())).total("device"))
        return _NoAllocation(self, ptr, item), 0, dims, kind, label

    def empty(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> DeviceBuffer:
        """Lists what `Runtime.empty` would allocate. Legal everywhere."""
        return PlannedBuffer(*self._allocation(shape, dtype, label, mapped=False))

    def mapped(self, shape: Sequence[int] | int, dtype: npt.DTypeLike, label: str) -> MappedBuffer:
        """Lists what `Runtime.mapped` would allocate. Legal everywhere."""
        return PlannedMappedBuffer(*self._allocation(shape, dtype, label, mapped=True))

    def plan(self, name: str = "step") -> StepPlan:
        """A plan whose `build` lists modules."""
        return _PlannedPlan(self, self._unique(name))

    def ungraphed(self, user: str) -> Any:
        """A user whose launches are checked and not made."""
        return _PlannedUser(self, user)

    def load(self, user: str, names: Iterable[str]) -> None:
        """Lists the module instances that a user of these kernels has for its own."""
        for name in names:
            image = kernels.images.find(name, self.architecture)
            self._modules.setdefault((user, image.stem), Item(f"module {image.stem}", len(image.read()), "module"))

    def synchronize(self) -> None:
        """Nothing was queued."""

    def close(self) -> None:
        """Nothing was opened."""

    def memory(self) -> MemoryPlan:
        """What was asked for so far and not given back."""
        items = sorted([*self._items.values(), *self._modules.values()], key=lambda i: -i.nbytes)
        return MemoryPlan(tuple(items), self._peak)


def require_memory(runtime: Runtime, make: Callable[[Runtime], Any]) -> MemoryPlan | None:
    """What ``make(runtime)`` would allocate, held against the memory that is free now. Allocates nothing.

    Returns
    -------
    MemoryPlan or None
        None when ``runtime`` plans itself.

    Raises
    ------
    MemoryExceeded
        It does not fit; names the three largest items.
    """
    if isinstance(runtime, PlanningRuntime):
        return None
    planning = PlanningRuntime(runtime.device.architecture)
    made = make(planning)
    plan = planning.memory()
    made.close()
    plan.check(runtime.context.memory_info()[0])
    return plan


__all__ = ["ALIGNMENT", "Item", "MemoryExceeded", "MemoryPlan", "PlanningRuntime", "require_memory"]
