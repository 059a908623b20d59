"""The GPU's state by NVML: clocks, what holds them down, memory, power, temperature. Loads no CUDA driver, creates no context."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foxhunt_rt.driver.errors import FoxhuntError

#: Bits of nvmlDeviceGetCurrentClocksEventReasons that slow a busy GPU down (nvml.h). Idle and the user's own application
#: clocks are not among them.
SLOWDOWN = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: Every bit, for people.
REASONS = {0x01: "idle", 0x02: "application clocks", 0x10: "sync boost", 0x100: "display clocks", **SLOWDOWN}


class NvmlUnavailable(FoxhuntError):
    """NVML or its GPU is not there."""


@dataclass(frozen=True)
class GpuState:
    """One reading. Clocks in MHz, memory in bytes, power in watts, temperature in degrees Celsius; None where the GPU does not
    say (power and temperature on some virtual GPUs)."""

    name: str
    driver: str
    sm_mhz: int
    sm_max_mhz: int
    memory_mhz: int
    reasons: int
    memory_used: int
    memory_total: int
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None

    @property
    def throttled(self) -> tuple[str, ...]:
        """What slows the clock down now; empty when nothing does."""
        return tuple(name for bit, name in sorted(SLOWDOWN.items()) if self.reasons & bit)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**dataclasses.asdict(self), "throttled": list(self.throttled),
                "clock_reasons": [name for bit, name in sorted(REASONS.items()) if self.reasons & bit]}  # fmt: skip

    def __str__(self) -> str:
        power = f", {self.power_w:.0f} W" if self.power_w is not None else ""
        limit = f" of {self.power_limit_w:.0f}" if self.power_w is not None and self.power_limit_w is not None else ""
        held = f", slowed by {', '.join(self.throttled)}" if self.throttled else ""
        return (f"{self.name}, driver {self.driver}: SM clock {self.sm_mhz} of {self.sm_max_mhz} MHz{held}, memory "
                f"{self.memory_used / 2**30:.1f} of {self.memory_total / 2**30:.1f} GiB{power}{limit}")  # fmt: skip


class Nvml:
    """NVML, opened for one GPU. Use as a context manager from `opened`.

    Parameters
    ----------
    pynvml : module
        Of nvidia-ml-py, initialized.
    which : str
        PCI bus id, such as ``"0000:3b:00.0"``, or a UUID: NVML and CUDA number GPUs differently. Of a MIG instance the memory is
        its own, and clocks, power and temperature are its GPU's.
    """

    def __init__(self, pynvml: Any, which: str) -> None:
        self._nvml = pynvml
        if which.startswith(("GPU-", "MIG-")):
            self._memory = self._handle = pynvml.nvmlDeviceGetHandleByUUID(which.encode())
            if which.startswith("MIG-"):
                self._handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._memory)
        else:
            self._memory = self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(which.encode())

    def read(self) -> GpuState:
        """The state now. Does not synchronize with the device's work."""
        n, h = self._nvml, self._handle
        memory = n.nvmlDeviceGetMemoryInfo(self._memory)
        return GpuState(text_of(n.nvmlDeviceGetName(self._memory)), text_of(n.nvmlSystemGetDriverVersion()),
                        int(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
                        int(n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
                        int(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
                        int(n.nvmlDeviceGetCurrentClocksEventReasons(h)), int(memory.used), int(memory.total),
                        self._watts(n.nvmlDeviceGetPowerUsage), self._watts(n.nvmlDeviceGetEnforcedPowerLimit),
                        self._known(n.nvmlDeviceGetTemperature, n.NVML_TEMPERATURE_GPU))  # fmt: skip

    def _known(self, function: Any, *args: Any) -> Any:
        try:
            return function(self._handle, *args)
        except self._nvml.NVMLError_NotSupported:
            return None

    def _watts(self, function: Any) -> float | None:
        milliwatts = self._known(function)
        return None if milliwatts is None else milliwatts / 1e3


def text_of(value: bytes | str) -> str:
    """NVML's strings are bytes in some versions of nvidia-ml-py."""
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """The module ``pynvml``, initialized, and shut down afterwards.

    Raises
    ------
    NvmlUnavailable
        No NVML library, or none that works.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise NvmlUnavailable(f"NVML cannot be used ({error}): install NVIDIA's driver") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextlib.contextmanager
def opened(which: str) -> Iterator[Nvml]:
    """NVML for the GPU at a PCI bus id (`foxhunt_rt.driver.Device.pci_bus_id`) or with a UUID, shut down afterwards.

    Raises
    ------
    NvmlUnavailable
        No NVML library, or no such GPU.
    """
    with session() as pynvml:
        try:
            nvml = Nvml(pynvml, which)
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML knows no GPU at {which} ({error}): check nvidia-smi") from None
        yield nvml


__all__ = ["GpuState", "Nvml", "NvmlUnavailable", "opened", "session", "text_of"]
