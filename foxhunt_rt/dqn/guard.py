"""The guard, as the host sees it: what a key in a record says, and the error that it becomes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.kernels import abi

#: A guard block that nobody has claimed.
CLEAR = 2**64 - 1

_CHILDREN = ("counters", "per_sample", "forward", "ddqn", "aux", "adam_grad", "adam", "per_priority", "publish")
_CHECKS = ("non_finite", "mass", "log_probability", "q_range", "empty", "probabilities")
_MENDS = {
    "non_finite": "a value is NaN or infinite: lower optim.lr or optim.max_grad_norm, or look for it in the rewards",
    "mass": "the projected target does not sum to 1: a discount is negative, or a kernel is wrong",
    "log_probability": "a log-probability is above 0: a kernel is wrong",
    "q_range": "|Q| lies beyond the support, which a softmax cannot reach: a kernel is wrong, or the support changed",
    "probabilities": "the probabilities of an action do not sum to 1: logits in the thousands, or a kernel is wrong",
    "empty": "nothing could be drawn: insert rows before the step",
}


@dataclass(frozen=True)
class Finding:
    """A guard key, decoded.

    Attributes
    ----------
    child : str
        Child that found it.
    check : str
        ``"non_finite"``, ``"mass"``, ``"log_probability"``, ``"q_range"``, ``"empty"`` or ``"probabilities"``.
    element : int
        Row or parameter it was found at; 16,777,215 stands for that one and all beyond.
    value : float
        What was found there.
    """

    child: str
    check: str
    element: int
    value: float


def decode(key: int) -> Finding | None:
    """The finding in a guard key, or None when the guard is clear."""
    if key == CLEAR:
        return None
    head, bits = key >> 32, key & 0xFFFFFFFF
    children = {abi.constant(f"GUARD_{name.upper()}"): name for name in _CHILDREN}
    checks = {abi.constant(f"CHECK_{name.upper()}"): name for name in _CHECKS}
    child, check = head >> 28, head >> 24 & 15
    return Finding(children.get(child, f"child {child}"), checks.get(check, f"check {check}"), head & 0xFFFFFF,
                   struct.unpack("<f", struct.pack("<I", bits))[0])  # fmt: skip


class GuardFault(FoxhuntError):
    """The device found something impossible in a training step; what was learned since is not to be trusted.

    Attributes
    ----------
    step : int
        Index of the step.
    finding : Finding
    """

    def __init__(self, step: int, finding: Finding) -> None:
        super().__init__(step, finding)
        self.step, self.finding = step, finding

    @property
    def child(self) -> str:
        """Child that found it."""
        return self.finding.child

    @property
    def check(self) -> str:
        """What was checked."""
        return self.finding.check

    @property
    def element(self) -> int:
        """Where in the child's data."""
        return self.finding.element

    @property
    def value(self) -> float:
        """What was found there."""
        return self.finding.value

    def __str__(self) -> str:
        f = self.finding
        return f"guard: step {self.step}, {f.child}, {f.check} at {f.element} (value {f.value:g}); {_MENDS.get(f.check, '')}"


__all__ = ["CLEAR", "Finding", "GuardFault", "decode"]
