"""Typed errors of the driver layer. Each is picklable, one line, and ends with how to mend it."""

from __future__ import annotations

from typing import Any

# After one of these the context is dead: every later call on it fails, on hardware with the same or another code.
# (CUDA driver API, CUresult: "leaves the process in an inconsistent state".)
STICKY = frozenset({"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
                    "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC",
                    "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ASSERT", "CUDA_ERROR_LAUNCH_TIMEOUT",
                    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_CONTEXT_IS_DESTROYED"})  # fmt: skip


class FoxhuntError(Exception):
    """Base of every error this package raises on purpose."""


class DriverNotFound(FoxhuntError):
    """No usable libcuda, or a conflict between a real one and hostsim."""


class DeviceNotFound(FoxhuntError):
    """No device has the ordinal or the UUID that was asked for."""


class OtherRuntime(FoxhuntError):
    """An object of one runtime was given to another. Devices do not reach each other's memory, and a runtime frees its own."""


class MissingEntryPoint(FoxhuntError):
    """The driver is too old for a call that has no fallback."""


class DriverError(FoxhuntError):
    """A driver call answered something other than CUDA_SUCCESS.

    Attributes
    ----------
    code : int
        The CUresult.
    name : str
        Its name, for example ``"CUDA_ERROR_ILLEGAL_ADDRESS"``.
    text : str
        The driver's own description.
    call : str
        The entry point that answered.
    where : dict of str to str
        What was being done: child, kernel, grid, block, step, as far as known.
    """

    def __init__(self, code: int, name: str, text: str, call: str, where: dict[str, str] | None = None) -> None:
        super().__init__(code, name, text, call, where)
        self.code, self.name, self.text, self.call = code, name, text, call
        self.where = dict(where or {})

    def at(self, **where: Any) -> DriverError:
        """Adds where it happened; what is known already is kept."""
        for key, value in where.items():
            if value is not None:
                self.where.setdefault(key, str(value))
        return self

    @property
    def sticky(self) -> bool:
        return self.name in STICKY

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.name, self.text, self.call, self.where)

    def __str__(self) -> str:
        place = ", ".join(f"{k} {v}" for k, v in self.where.items() if k != "report")
        line = f"{self.call}: {self.name} ({self.code}): {self.text}" + (f" [{place}]" if place else "")
        if self.where.get("report"):
            line += f"; hostsim: {self.where['report']}"
        if not self.sticky:
            return line
        known = "child" in self.where or "user" in self.where
        return f"{line}; the context is dead: restart the process" + (
            "" if known else ", with FOXHUNT_GRAPH=debug to learn the child and the kernel")  # fmt: skip


class OutOfMemory(DriverError):
    """Device or pinned memory is exhausted; says what was asked for, what is free, and who holds the most."""


class ContextDead(DriverError):
    """An earlier sticky error killed the context; carries that first cause."""

    def __str__(self) -> str:
        return f"the context died earlier: {super().__str__()}"


class LifetimeError(FoxhuntError):
    """An object was used after it was freed, in a forked child, or freed while in use."""


class CaptureError(FoxhuntError):
    """Something that is not legal inside a stream capture."""


class IllegalInCapture(DriverError, CaptureError):
    """The driver refused a call because of a stream capture, which it has invalidated in most cases."""

    def __str__(self) -> str:
        return f"{super().__str__()}: do it before the capture, or after it"
