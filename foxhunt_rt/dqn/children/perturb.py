"""perturb: shrink-and-perturb between epochs (Ash & Adams 2020; docs/step/prune.md). No child of the step, but an ungraphed
user with modules of its own."""

from __future__ import annotations

from collections.abc import Sequence

from foxhunt_rt.config import PerturbConfig
from foxhunt_rt.dqn.children.prune import Prune
from foxhunt_rt.dqn.extension import Extension, StepView

_THREADS = 256
_PER_BLOCK = 1024


class Perturb(Extension):
    """theta <- shrink * theta + sigma * xi, for the network's parameters, before every so many epochs."""

    name = "perturb"

    def __init__(self, config: PerturbConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        self._step, self._user = step, step.runtime.ungraphed("perturb")

    def begin_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        if epoch == 0 or epoch % self.config.period:
            return
        step = self._step
        mask = next((other.mask for other in others if isinstance(other, Prune)), None)  # of the first floats
        for layer in step.layout.layers:
            for segment in (layer.weight, layer.bias):
                rows, columns = (1, *segment.shape)[-2:]
                under = mask is not None and segment.stop <= mask.size
                blocks = -(-rows * columns // _PER_BLOCK)
                self._user.launch("shrink_perturb", (blocks,), (_THREADS,), dict(
                    theta=step.adam.theta[segment.offset : segment.stop], control=step.control, state=step.state,
                    mask=mask[segment.offset : segment.stop] if under and mask is not None else None, first=segment.offset,
                    shrink=self.config.shrink, sigma=self.config.sigma, rows=rows, N=columns,
                    Np=segment.padded_shape[-1], per_block=_PER_BLOCK))  # fmt: skip


__all__ = ["Perturb"]
