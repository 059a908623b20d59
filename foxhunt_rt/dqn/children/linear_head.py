"""A linear head of a few outputs on the trunk's output, which is a constant to it: its parameters and the way back.

The head's own kernel leaves one row a batch row: first what is reported of it, then the gradients of its outputs.
"""

from __future__ import annotations

from foxhunt_rt.config import HeadConfig
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


def record_head_gradient(child: Child, step: StepView, group: GroupView, rows: Buffer, means: Buffer, *,
                         outputs: int) -> None:  # fmt: skip
    """Records the gradient, the means of what the head reports, and the squares. Two launches.

    Parameters
    ----------
    rows : Buffer
        f32 (B, n + outputs), of the first rows of `StepView.trunk_output`: what is reported, then the gradients of the outputs.
    means : Buffer
        f32 (n,), over the rows.
    """
    x = step.trunk_output[: rows.shape[0]]
    batch, width = x.shape
    child.launch("head_gradient", grid=(-(-width // abi.constant("HEAD_COLUMNS")) + 1,), block=(512,),
                 args=dict(x=x, rows=rows, dw=group.grad("weight"), dbias=group.grad("bias"), means=means,
                           B=batch, C=rows.shape[1], first=means.size, outputs=outputs, Hp=width))  # fmt: skip
    group.record_squares(child)


__all__ = ["linear_head", "record_head_gradient"]
