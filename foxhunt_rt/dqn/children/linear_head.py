"""A linear head of a few outputs on the trunk's output, which is a constant to it: its parameters and the way back.

The head's own kernel leaves one row a batch row: first what is reported of it, then the gradients of its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foxhunt_rt.config import HeadConfig
from foxhunt_rt.dqn.children.adam_grad import sum_splits
from foxhunt_rt.dqn.extension import GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child
from foxhunt_rt.kernels import abi


def linear_head(name: str, layout: NetworkLayout, outputs: int, options: HeadConfig, *,
                normalized: bool = False) -> ParameterGroup:  # fmt: skip
    """Weight (H, outputs) and bias of a linear head, with an optimizer of their own. ``normalized``: its outputs are returns
    in units of the support, which popart may change."""
    width = layout.hidden[-1]
    bound = uniform_bound(width)
    tensors = (Tensor("weight", (width, outputs), True, bound), Tensor("bias", (outputs,), False, bound))
    scaled = ("weight", "bias") if normalized else ()
    return ParameterGroup(name, tensors, options.lr_factor, options.max_grad_norm, scaled)


@dataclass(frozen=True)
class HeadGradient:
    """The way back of a head, with the squares of its gradient: two launches.

    Attributes
    ----------
    x : Buffer
        f32 (B, Hp): the trunk's output.
    partial : Buffer or None
        f32 (splits, Hp, 16): dW of each split of the rows, for grad_reduce to add; None: a small batch is not split.
    runs : Buffer or None
        Where they belong.
    """

    group: GroupView
    x: Buffer
    splits: int
    partial: Buffer | None
    runs: Buffer | None

    @classmethod
    def create(cls, step: StepView, group: GroupView, batch: int) -> HeadGradient:
        """Allocates for the first ``batch`` rows of `StepView.trunk_output`."""
        x, n, size = step.trunk_output[:batch], sum_splits(batch), group.grad("weight").size
        if n == 1:
            return cls(group, x, 1, None, None)
        partial = step.runtime.zeros(n * size, np.float32, f"{group.group.name}.partial")
        return cls(group, x, n, partial, group.runs(step.runtime, {"weight": (0, size, n)}))

    @property
    def reads(self) -> list[Buffer]:
        """What a child declares as read that records it."""
        return [self.x, *([self.runs] if self.runs is not None else [])]

    @property
    def writes(self) -> list[Buffer]:
        """And as written."""
        return [*self.group.gradient, *([self.partial] if self.partial is not None else [])]

    def record(self, child: Child, rows: Buffer, means: Buffer, *, outputs: int) -> None:
        """Records the gradient, the means of what the head reports, and the squares.

        Parameters
        ----------
        rows : Buffer
            f32 (B, n + outputs): what is reported, then the gradients of the outputs.
        means : Buffer
            f32 (n,), over the rows.
        """
        batch, width = self.x.shape
        blocks = self.splits * -(-width // abi.constant("HEAD_COLUMNS")) + means.size + outputs
        child.launch("head_gradient", grid=(blocks,), block=(256,),
                     args=dict(x=self.x, rows=rows, dw=self.partial if self.partial is not None else self.group.grad("weight"),
                               dbias=self.group.grad("bias"), means=means, B=batch, C=rows.shape[1], first=means.size,
                               outputs=outputs, Hp=width, splits=self.splits))  # fmt: skip
        self.group.record_squares(child, self.partial, self.runs, self.splits)


__all__ = ["HeadGradient", "linear_head"]
