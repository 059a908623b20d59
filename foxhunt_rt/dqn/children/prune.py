"""adam_grad.prune: a mask on the trunk's weights that grows between epochs (docs/step/prune.md).

In the step one launch between adam_grad and adam masks the gradient. Between epochs the smallest weights of each matrix leave:
the mask is chosen on the host, and an ungraphed user of its own modules zeroes theta, target, moments and what other extensions
keep under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import PruneConfig
from foxhunt_rt.dqn.children.spectral import matrices
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import padded
from foxhunt_rt.driver import Buffer, DeviceBuffer

_THREADS = 256
_PER_BLOCK = 2048
_MOST_BLOCKS = 128


def sparsity(config: PruneConfig, epoch: int) -> float:
    """Share of the weights that are pruned from an epoch on, counted from 0: Zhu & Gupta 2017, equation 1, from 0."""
    first, last = config.first_epoch, config.last_epoch
    if epoch < first:
        return 0.0
    done = min(1.0, (epoch - first + 1) / (last - first + 1))
    return config.sparsity * (1.0 - (1.0 - done) ** 3)


def choose(weights: npt.NDArray[np.float32], mask: npt.NDArray[np.float32], share: float) -> npt.NDArray[np.float32]:
    """The mask of one matrix: the smallest |w| leave, those that have left first of all, and among equals the first."""
    count = int(share * weights.size)
    order = np.lexsort((np.abs(weights).ravel(), mask.ravel() != 0.0))
    new = mask.copy().ravel()
    new[order[:count]] = 0.0
    return new.reshape(mask.shape)


class Prune(Extension):
    """Magnitude pruning of the trunk's weights, matrix by matrix.

    Attributes
    ----------
    mask : DeviceBuffer
        f32 (weights of the trunk with padding,): 0 where pruned, else 1.
    """

    name, metrics = "prune", ("prune_sparsity",)
    mask: DeviceBuffer

    def __init__(self, config: PruneConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        rt, n, parts = step.runtime, step.layout.network_size, step.grad.network_parts
        self._weights = matrices(step.layout)
        stop = self._weights[-1].stop
        blocks = max(1, min(n // _PER_BLOCK, parts, _MOST_BLOCKS))
        self.mask = rt.array(np.ones(stop, np.float32), "prune.mask")
        self.pruned = rt.zeros(1, np.uint32, "prune.pruned")
        self._adam, self._user = step.adam, rt.ungraphed("prune")
        grad, norm_part, found = step.grad.grad[:n], step.grad.norm_part[:parts], step.metric("prune_sparsity")
        with step.child("adam_grad.prune", after="adam_grad", reads=[self.mask, self.pruned],
                        writes=[grad, norm_part, found]) as child:  # fmt: skip
            child.launch("prune_gradient", (blocks,), (_THREADS,),
                         dict(grad=grad, mask=self.mask, pruned=self.pruned, norm_part=norm_part, sparsity=found, n=n,
                              masked=stop, blocks=blocks, per_block=padded(-(-n // blocks)), parts=parts,
                              prunable=sum(w.shape[0] * w.shape[1] for w in self._weights)))  # fmt: skip
        self._zero(self._adam.theta)  # nothing yet: loads what it launches, before any step

    def begin_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        share = sparsity(self.config, epoch)
        theta, mask, pruned = self._adam.theta.to_numpy(), self.mask.to_numpy(), 0  # type: ignore[attr-defined]
        for weight in self._weights:
            rows, columns = weight.shape
            one, kept = (
                x[weight.offset : weight.stop].reshape(weight.padded_shape)[:rows, :columns] for x in (theta, mask)
            )
            kept[...] = choose(one, kept, share)
            pruned += int((kept == 0.0).sum())
        self.mask.copy_from(mask)
        self.pruned.copy_from(np.array([pruned], np.uint32))
        kept = [buffer for extension in others for buffer in extension.kept_gradients()]
        for buffer in (self._adam.theta, self._adam.target, self._adam.m, self._adam.v, *kept):
            self._zero(buffer)

    def _zero(self, buffer: Buffer) -> None:
        n = self.mask.size
        self._user.launch("prune_apply", (-(-n // _PER_BLOCK),), (_THREADS,),
                          dict(buffer=buffer[:n], mask=self.mask, n=n, per_block=_PER_BLOCK))  # fmt: skip

    def reset(self) -> None:
        self.mask.copy_from(np.ones(self.mask.size, np.float32))
        self.pruned.fill(0)

    def persistent(self) -> dict[str, DeviceBuffer]:
        return {"mask": self.mask, "pruned": self.pruned}

    def report(self) -> dict[str, Any]:
        mask, layers = self.mask.to_numpy(), []
        for weight in self._weights:
            rows, columns = weight.shape
            part = mask[weight.offset : weight.stop].reshape(weight.padded_shape)[:rows, :columns]
            layers.append(float((part == 0.0).mean()))
        return {"sparsity": layers}


__all__ = ["Prune", "choose", "sparsity"]
