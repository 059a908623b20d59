"""adam_grad.vaccine and maintenance.keep: the gradient bent towards that of the step before, every so many steps
(docs/step/vaccine.md).

The vaccine stands between adam_grad and adam: 1. `vaccine_dots`, 2. `vaccine_apply`. maintenance.keep keeps the gradient beside
adam on the step before a vaccine: `vaccine_keep`. All three are plain launches that return at once when they are not due, which
they read in the step block: no launch, decision or wait of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt.config import VaccineConfig
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import padded
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Child, Runtime

_THREADS = 256
_PER_BLOCK = 2048  # elements that a block owns, at least
_MOST_BLOCKS = 128  # every block of vaccine_apply adds up the sums of all


@dataclass(frozen=True)
class VaccineBuffers:
    """What the vaccine reads, changes and keeps, for n elements of gradient."""

    step: Buffer  # step_block[1]
    grad: Buffer  # f32 (n,)
    norm_part: Buffer  # f64 (parts,) their squares, for the clip
    previous: DeviceBuffer  # f32 (n,) gradient of the step before the next vaccine, unclipped
    target: DeviceBuffer  # f32 (2,) running target of the cosine, in two places that take turns
    part: DeviceBuffer  # f64 (3 * blocks,)

    @classmethod
    def create(cls, rt: Runtime, step: Buffer, grad: Buffer, norm_part: Buffer) -> VaccineBuffers:
        """Allocates what the vaccine adds."""
        blocks = max(1, min(grad.size // _PER_BLOCK, norm_part.size, _MOST_BLOCKS))
        return cls(step, grad, norm_part, rt.zeros(grad.size, np.float32, "vaccine.previous"),
                   rt.zeros(2, np.float32, "vaccine.target"), rt.zeros(3 * blocks, np.float64, "vaccine.part"))  # fmt: skip

    @property
    def blocks(self) -> int:
        return self.part.size // 3

    def shared(self) -> dict[str, Any]:
        """Arguments that all three kernels take."""
        return dict(step=self.step, previous=self.previous, grad=self.grad, n=self.grad.size,
                    per_block=padded(-(-self.grad.size // self.blocks)))  # fmt: skip


def record_vaccine(child: Child, buffers: VaccineBuffers, config: VaccineConfig, cosine: Buffer, now: Buffer,
                   added: Buffer) -> None:  # fmt: skip
    """Two launches; ``cosine``, ``now`` (the target) and ``added``, f32 (1,), keep what the last vaccine found."""
    sums = dict(buffers.shared(), part=buffers.part, blocks=buffers.blocks)
    child.launch("vaccine_dots", (buffers.blocks,), (_THREADS,), sums)
    child.launch("vaccine_apply", (buffers.blocks,), (_THREADS,),
                 dict(sums, norm_part=buffers.norm_part, target=buffers.target, cosine=cosine, now=now, added=added,
                      parts=buffers.norm_part.size, period=config.period, rate=config.rate,
                      target_max=config.target_max))  # fmt: skip


def record_keep(child: Child, buffers: VaccineBuffers) -> None:
    """One launch."""
    child.launch("vaccine_keep", (buffers.blocks,), (_THREADS,), buffers.shared())


class Vaccine(Extension):
    """Gradient vaccine (Wang 2021) on the network's own gradient; groups of parameters are left alone."""

    name = "vaccine"
    metrics = ("vaccine_cosine", "vaccine_target", "vaccine_added")
    buffers: VaccineBuffers

    def __init__(self, config: VaccineConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        b = self.buffers = VaccineBuffers.create(step.runtime, step.step, step.grad.grad[: step.layout.network_size],
                                                 step.grad.norm_part[: step.grad.network_parts])  # fmt: skip
        self._found = [step.metric(name) for name in self.metrics]
        with step.child("adam_grad.vaccine", after="adam_grad", reads=[b.previous, b.step],
                        writes=[b.grad, b.norm_part, b.part, b.target, *self._found]) as child:  # fmt: skip
            record_vaccine(child, b, self.config, *self._found)
        with step.child("maintenance.keep", after="adam", reads=[b.grad, b.step], writes=[b.previous]) as child:
            record_keep(child, b)

    def reset(self) -> None:
        for buffer in self.persistent().values():
            buffer.fill(0)

    def kept_gradients(self) -> list[Buffer]:
        return [self.buffers.previous]

    def persistent(self) -> dict[str, DeviceBuffer]:
        found: dict[str, Any] = {"previous": self.buffers.previous, "target": self.buffers.target}
        return {**found, **dict(zip(self.metrics, self._found, strict=True))}


__all__ = ["Vaccine", "VaccineBuffers", "record_keep", "record_vaccine"]
