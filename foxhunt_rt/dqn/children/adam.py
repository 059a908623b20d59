"""adam: clip, AdamW and the Polyak target in one launch over the flat buffers (docs/step/adam.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.layout import GROUP_PAD, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime, StepPlan
from foxhunt_rt.kernels import abi

_THREADS = 256


@dataclass(frozen=True)
class AdamInputs:
    """What adam reads."""

    grad: Buffer  # f32 (P,) gradient before the clip
    norm_part: Buffer  # f64 (parts,) sums of squares
    step: Buffer  # step_block[1]
    guard: Buffer | None  # guard_block[1]; None: a non-finite norm is only counted
    groups: Buffer | None = None  # optim_group[groups]; None: the network alone


@dataclass(frozen=True)
class AdamBuffers:
    """What adam updates."""

    theta: Buffer  # f32 (P,) online parameters
    target: Buffer  # f32 (P,) Polyak copy
    m: Buffer  # f32 (P,) first moment
    v: Buffer  # f32 (P,) second moment
    stats: Buffer  # optim_stats[groups], the network first: norm, clip factor, updates skipped

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout) -> AdamBuffers:
        """Allocates parameters, target, moments (all zero: see `load`) and statistics."""
        theta, target, m, v = (
            rt.zeros(layout.size, np.float32, f"adam.{name}") for name in ("theta", "target", "m", "v")
        )
        stats = rt.zeros(1 + len(layout.groups), abi.dtype("optim_stats"), "adam.stats")
        return cls(theta, target, m, v, stats)

    def load(self, flat: npt.NDArray[np.float32]) -> None:
        """Parameters and target from a packed array (P,); all else zero. Synchronizes; not legal inside a capture."""
        self.theta.copy_from(flat)  # type: ignore[attr-defined]
        self.target.copy_from(flat)  # type: ignore[attr-defined]
        for buffer in (self.m, self.v, self.stats):
            buffer.fill(0)  # type: ignore[attr-defined]


def per_block(layout: NetworkLayout) -> int:
    """Elements of the flat buffers that a block owns: small networks spread over many blocks, one vector a thread."""
    return 1024 if layout.network_size <= 1 << 18 else GROUP_PAD


def reads(inputs: AdamInputs) -> list[Buffer]:
    groups = [inputs.groups] if inputs.groups is not None else []
    return [inputs.grad, inputs.norm_part, inputs.step, *groups]


def writes(buffers: AdamBuffers) -> list[Buffer]:
    return [buffers.theta, buffers.target, buffers.m, buffers.v, buffers.stats]


def private(inputs: AdamInputs) -> list[Buffer]:
    """The guard: claimed by an integer minimum, so it orders nothing."""
    return [inputs.guard] if inputs.guard is not None else []


def record(child: Child, layout: NetworkLayout, inputs: AdamInputs, buffers: AdamBuffers) -> None:
    """One launch."""
    child.launch(
        "adam_update",
        grid=(-(-layout.size // per_block(layout)),),
        block=(_THREADS,),
        args=dict(
            theta=buffers.theta,
            target=buffers.target,
            m=buffers.m,
            v=buffers.v,
            grad=inputs.grad,
            norm_part=inputs.norm_part,
            step=inputs.step,
            stats=buffers.stats,
            groups=inputs.groups,
            guard=inputs.guard,
            n=layout.size,
            n_decay=layout.n_decay,
            parts=inputs.norm_part.size,
            per_block=per_block(layout),
            groups_n=buffers.stats.shape[0],
        ),
    )


def add(plan: StepPlan, layout: NetworkLayout, inputs: AdamInputs, buffers: AdamBuffers) -> None:
    """Appends the child to a plan."""
    with plan.child("adam", reads=reads(inputs), writes=writes(buffers), private=private(inputs)) as child:
        record(child, layout, inputs, buffers)


__all__ = ["AdamBuffers", "AdamInputs", "add", "private", "reads", "record", "writes"]
