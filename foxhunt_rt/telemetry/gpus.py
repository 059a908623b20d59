"""Which GPUs there are and who uses them, by NVML: nothing here loads a CUDA driver or creates a context.

NVML numbers GPUs by PCI bus; CUDA by speed, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and only those that ``CUDA_VISIBLE_DEVICES``
names. So a number is never carried from one to the other: UUID and PCI bus id are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foxhunt_rt.driver import live_bytes
from foxhunt_rt.graph import Runtime
from foxhunt_rt.telemetry.nvml import NvmlUnavailable, session, text_of


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG instance of one.

    Attributes
    ----------
    index : int
        NVML's; of a MIG instance, its place within its GPU.
    uuid : str
        ``"GPU-..."`` or ``"MIG-..."``: what `Runtime` takes.
    bus_id : str
        PCI bus id, of the GPU in both cases.
    name : str
    capability : tuple of int
    memory_total, memory_used : int
        Bytes.
    processes : tuple of (int, int or None)
        Process id, and bytes that it holds (None where NVML may not say) of each that has a context.
    instances : tuple of Gpu
        MIG instances. A GPU that has some runs nothing itself.
    """

    index: int
    uuid: str
    bus_id: str
    name: str
    capability: tuple[int, int]
    memory_total: int
    memory_used: int
    processes: tuple[tuple[int, int | None], ...] = ()
    instances: tuple[Gpu, ...] = ()

    @property
    def architecture(self) -> str:
        """``"sm_90"``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def __str__(self) -> str:
        users = ", ".join(f"{pid}" + (f" ({n / 2**20:,.0f} MiB)" if n else "") for pid, n in self.processes)
        return (f"{self.uuid} at {self.bus_id}: {self.name}, {self.architecture}, {self.memory_used / 2**30:.1f} of "
                f"{self.memory_total / 2**30:.1f} GiB used" + (f", by processes {users}" if users else ""))  # fmt: skip


def gpus() -> list[Gpu]:
    """Every GPU of this machine, whatever CUDA_VISIBLE_DEVICES says, with its MIG instances.

    Raises
    ------
    NvmlUnavailable
    """
    with session() as n:
        return [_gpu(n, n.nvmlDeviceGetHandleByIndex(i), i) for i in range(n.nvmlDeviceGetCount())]


def _gpu(n: Any, handle: Any, index: int, parent: Any = None) -> Gpu:
    whole = handle if parent is None else parent
    memory = n.nvmlDeviceGetMemoryInfo(handle)
    found = () if parent is not None else tuple(_instances(n, handle))
    capability = n.nvmlDeviceGetCudaComputeCapability(whole)
    return Gpu(index, text_of(n.nvmlDeviceGetUUID(handle)), text_of(n.nvmlDeviceGetPciInfo(whole).busId)[-12:],
               text_of(n.nvmlDeviceGetName(handle)), (int(capability[0]), int(capability[1])), int(memory.total),
               int(memory.used), _processes(n, handle), found)  # fmt: skip


def _instances(n: Any, handle: Any) -> list[Gpu]:
    try:
        if not n.nvmlDeviceGetMigMode(handle)[0]:
            return []
    except n.NVMLError:  # a GPU without MIG
        return []
    found = []
    for i in range(n.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = n.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
        except n.NVMLError:  # places may be empty
            continue
        found.append(_gpu(n, instance, i, parent=handle))
    return found


def _processes(n: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    try:
        return tuple((int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory))
                     for p in n.nvmlDeviceGetComputeRunningProcesses(handle))  # fmt: skip
    except n.NVMLError:  # not permitted in some containers
        return ()


def visible(found: Sequence[Gpu], environment: Mapping[str, str] | None = None) -> list[Gpu] | None:
    """The devices that CUDA would number 0, 1, ... in a process with this environment.

    Returns
    -------
    list of Gpu, or None
        None where NVML cannot tell: several kinds of GPU and CUDA's own order, fastest first.

    Notes
    -----
    As the CUDA documentation has it: what follows an unknown entry of CUDA_VISIBLE_DEVICES is not visible, UUIDs may be
    shortened, and of MIG instances one is seen, the first when none is named.
    """
    env = os.environ if environment is None else environment
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    same = len({g.name for g in found}) <= 1 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if chosen is None:
        return _devices_of(found) if same else None
    picked: list[Gpu] = []
    for entry in (e.strip() for e in chosen.split(",")):
        if entry.isdigit():
            if not same:
                return None
            match = [found[int(entry)]] if int(entry) < len(found) else []
        else:
            everything = [*found, *(m for g in found for m in g.instances)]
            match = [g for g in everything if len(entry) > len("GPU-") and g.uuid.lower().startswith(entry.lower())]
        if len(match) != 1 or match[0] in picked:
            break
        picked.append(match[0])
    return _devices_of(picked)


def _devices_of(found: Sequence[Gpu]) -> list[Gpu]:
    instances = [g.instances[0] if g.instances else g for g in found if g.instances or g.uuid.startswith("MIG-")]
    return instances[:1] or list(found)


def who_uses_what(runtimes: Sequence[Runtime]) -> list[dict[str, Any]]:
    """For each runtime of this process: its device by every name, what it holds, what the whole GPU holds.

    Returns
    -------
    list of dict
        ``ordinal`` (CUDA's), ``uuid``, ``bus_id``, ``nvml_index``, ``own_bytes`` of live buffers, ``memory_used`` and
        ``memory_total`` of the GPU with everybody on it; None for what NVML does not know, as under hostsim.
    """
    try:
        everything = [d for g in gpus() for d in (g, *g.instances)]
    except NvmlUnavailable:
        everything = []
    by_uuid = {g.uuid: g for g in everything}
    rows = []
    for rt in runtimes:
        gpu = by_uuid.get(rt.device.uuid)
        rows.append({"ordinal": rt.device.ordinal, "uuid": rt.device.uuid, "bus_id": rt.device.pci_bus_id,
                     "nvml_index": gpu.index if gpu else None, "own_bytes": live_bytes(rt.context),
                     "memory_used": gpu.memory_used if gpu else None,
                     "memory_total": gpu.memory_total if gpu else None})  # fmt: skip
    return rows


__all__ = ["Gpu", "gpus", "visible", "who_uses_what"]
