"""Typed errors of the kernels layer. Each is picklable, one line, and ends with how to mend it."""

from __future__ import annotations

from typing import Any

from foxhunt_rt.driver.errors import FoxhuntError


class AbiError(FoxhuntError):
    """A header, or an image that does not fit its header, breaks the kernel ABI."""


class KernelNotFound(FoxhuntError):
    """No kernel of that name was built."""


class ArchitectureError(FoxhuntError):
    """No image of a kernel fits the device.

    Attributes
    ----------
    kernel, wanted : str
    available : tuple of str
        Architectures on hand for this kernel.
    """

    def __init__(self, kernel: str, wanted: str, available: tuple[str, ...]) -> None:
        super().__init__(kernel, wanted, available)
        self.kernel, self.wanted, self.available = kernel, wanted, available

    def __str__(self) -> str:
        on_hand = ", ".join(self.available) or "none"
        mend = "python tools/build.py"
        if self.available == ("host",):  # images are here, but not for a processor older than x86-64-v3
            mend += " --baseline"
        if self.wanted.startswith("sm_"):
            mend = f"FOXHUNT_CUDA_ARCHS={self.wanted.removeprefix('sm_')} pip install -e ."
        return f"{self.kernel}: no image for {self.wanted}; on hand: {on_hand}; rebuild with `{mend}`"


class ArgumentError(FoxhuntError):
    """A kernel argument is wrong. Raised before the launch, instead of an illegal address after it.

    Attributes
    ----------
    kernel, field, problem : str
    """

    def __init__(self, kernel: str, field: str, problem: str) -> None:
        super().__init__(kernel, field, problem)
        self.kernel, self.field, self.problem = kernel, field, problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.field, self.problem)

    def __str__(self) -> str:
        return f"{self.kernel}({self.field}): {self.problem}"


class CompileError(FoxhuntError):
    """A kernel of one's own that does not compile, or a compiler that is not there."""
