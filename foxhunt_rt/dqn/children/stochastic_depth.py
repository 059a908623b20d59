"""depth: which rows pass through which residual blocks of the trunk in this step (docs/step/stochastic_depth.md).

One launch beside per_sample, `depth_masks`, writes a factor for each block and row; forward multiplies by them in the online
pass on s, and adam_grad on the way back. All other passes, acting and evaluation have every block.
"""

from __future__ import annotations

from foxhunt_rt.config import DepthConfig
from foxhunt_rt.dqn.extension import Extension, StepView

_MOST_THREADS = 1024


class StochasticDepth(Extension):
    """Masks of stochastic depth, a row and block each."""

    name, metrics = "depth", ("depth_kept",)

    def __init__(self, config: DepthConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        scale, kept = step.depth, step.metric("depth_kept")
        assert scale is not None, "the learner makes it where the feature is on"
        blocks, rows = scale.shape
        threads = min(_MOST_THREADS, -(-blocks * rows // 4 // 32) * 32 or 32)
        with step.child("forward.depth", before="forward", reads=[step.step], writes=[scale, kept]) as child:
            child.launch("depth_masks", (1,), (threads,),
                         dict(step=step.step, scale=scale, kept=kept, L=blocks, R=rows, drop=self.config.drop))  # fmt: skip


__all__ = ["StochasticDepth"]
