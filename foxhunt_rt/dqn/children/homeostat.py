"""homeostat: a regulator between epochs that keeps atom use, entropy, gradient norm and weight norm in their ranges by nudging
loss weights, and a bounded loss term for the entropy (docs/step/epoch.md).

The decisions are the host's. In the step, and only with ``homeostat.loss_weight`` above 0: aux.entropy, beside ddqn,
`entropy_gradient`, a block a row; then aux.homeostat, `aux_blend`: within its share of the gradient budget onto dlogits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from foxhunt_rt.config import HomeostatConfig
from foxhunt_rt.dqn.children.aux import add_blend
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.children.epoch_stats import last_batch
from foxhunt_rt.dqn.children.forward import ONLINE
from foxhunt_rt.dqn.children.row_launch import RowLaunch
from foxhunt_rt.dqn.extension import Extension, ExtensionError, StepView
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.kernels import abi


def entropy_launch(shape: LossShape) -> RowLaunch:
    """Of the loss term's gradient."""
    k, n = len(shape.branches), shape.atoms
    return RowLaunch.of(
        ("entropy_gradient", "entropy_gradient_wide"), shape, tasks=k, logits=shape.head_padded, work=2 * k * n + 2 * k
    )


def violation(x: float, bounds: tuple[float, ...]) -> float:
    """How far x is below (positive) or above (negative) its range, as a share of the bound, at most 1; 0: within."""
    low, high = bounds
    if x < low:
        return min((low - x) / low, 1.0)
    return -min((x - high) / high, 1.0) if x > high else 0.0


def nudged(weight: float, by: float, start: float, low: float, high: float, relax: float) -> float:
    """A weight moved by a share of its range [low, high]; with ``by`` 0 it goes back towards where it started."""
    moved = weight + by * (high - low) if by else weight + relax * (start - weight)
    return min(max(moved, low), high)


class Homeostat(Extension):
    """The regulator.

    Attributes
    ----------
    weight : DeviceBuffer or None
        f32 (1,): of the loss term now; None: no term.
    violations : dict of str to float
        Found at the last epoch's end.
    """

    name = "homeostat"

    def __init__(self, config: HomeostatConfig) -> None:
        self.config = config
        self.metrics = ("homeostat_loss", "homeostat_scale") if config.loss_weight > 0.0 else ()
        self.weight: DeviceBuffer | None = None
        self.violations: dict[str, float] = {}

    def record(self, step: StepView) -> None:
        rt, shape, options = step.runtime, step.shape, self.config
        self._step, self._settings = step, step.settings
        self.first_norm = rt.zeros(1, np.float64, "homeostat.first_norm")
        if not options.loss_weight:
            return
        self.weight = rt.array(np.array([options.loss_weight], np.float32), "homeostat.weight")
        self.part = part = rt.zeros((shape.batch, shape.head_padded), np.float32, "homeostat.part")
        self.rows = rows = rt.zeros((shape.batch, abi.constant("AUX_COLUMNS")), np.float32, "homeostat.rows")
        logits = step.forward.logits
        online: Buffer = logits[ONLINE : ONLINE + 1].view(logits.shape[1:])[: shape.batch]
        k, n = len(shape.branches), shape.atoms
        with step.child("aux.entropy", after="ddqn", reads=[online, step.batch.action, self.weight],
                        writes=[part, rows]) as child:  # fmt: skip
            launch = entropy_launch(shape)
            child.launch(launch.kernel, (shape.batch,), (launch.threads,), shared=launch.shared, args=dict(
                logits=online, action=step.batch.action, weight=self.weight, part=part, rows=rows,
                branch_sizes=shape.packed_branches, low=options.entropy[0], high=options.entropy[1],
                branch_scale=1.0 / k if shape.reduction == "mean" else 1.0, B=shape.batch, K=k, S=shape.actions, N=n,
                Np=shape.head_padded))  # fmt: skip
        add_blend(step, "aux.homeostat", self, part, rows, options.budget_share)

    def _norm(self) -> float:
        """Of the network's parameters."""
        theta = self._step.adam.theta[: self._step.layout.network_size].to_numpy()
        return float(np.linalg.norm(theta.astype(np.float64)))

    def begin_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        if epoch == 0:
            self.first_norm.copy_from(np.array([self._norm()], np.float64))

    def end_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        first, found, options = float(self.first_norm.to_numpy()[0]), last_batch(others), self.config
        if first <= 0.0:
            raise ExtensionError(
                "the regulator has not seen the fold's first parameters: call Learner.begin_epoch(0) first"
            )
        grad_norm = float(self._step.adam.stats.to_numpy()["grad_norm"][0])  # type: ignore[attr-defined]
        seen = {
            "atom_use": found.atom_use,
            "entropy": found.entropy,
            "grad_norm": grad_norm,
            "weight_norm": self._norm() / first,
        }
        self.violations = {name: violation(x, getattr(options, name)) for name, x in seen.items()}
        self._settings.set(**self._nudge(self.violations))
        if self.weight is not None:
            now, by = float(self.weight.to_numpy()[0]), options.rate * abs(self.violations["entropy"])
            self.weight.fill(
                nudged(now, by, options.loss_weight, options.loss_weight, options.loss_weight_max, options.relax)
            )

    def _nudge(self, out: dict[str, float]) -> dict[str, float]:
        """The settings to come."""
        now, start, options = self._settings.config, self._settings.initial, self.config
        spread = out["atom_use"] if self.weight is not None else min(max(out["atom_use"] + out["entropy"], -1.0), 1.0)
        low, decay = start.loss.label_smoothing, start.optim.weight_decay
        changes = {
            "label_smoothing": nudged(now.loss.label_smoothing, options.rate * spread, low, low,
                                      max(low, options.smoothing_max), options.relax),
            "weight_decay": nudged(now.optim.weight_decay, -options.rate * out["weight_norm"], decay, decay,
                                   max(decay, options.decay_max), options.relax),
        }  # fmt: skip
        if start.loss.grad_budget > 0.0:  # on a logarithmic scale
            room = math.log(options.budget_factor)
            at = math.log(now.loss.grad_budget / start.loss.grad_budget)
            moved = nudged(at, options.rate * out["grad_norm"], 0.0, -room, room, options.relax)
            changes["grad_budget"] = start.loss.grad_budget * math.exp(moved)
        return changes

    def reset(self) -> None:
        self.first_norm.fill(0)
        self.violations = {}
        if self.weight is not None:
            self.weight.fill(self.config.loss_weight)

    def persistent(self) -> dict[str, DeviceBuffer]:
        return {"first_norm": self.first_norm, **({"weight": self.weight} if self.weight is not None else {})}

    def report(self) -> dict[str, Any]:
        now = self._settings.config
        return {"violations": dict(self.violations), "label_smoothing": now.loss.label_smoothing,
                "grad_budget": now.loss.grad_budget, "weight_decay": now.optim.weight_decay,
                "loss_weight": float(self.weight.to_numpy()[0]) if self.weight is not None else 0.0}  # fmt: skip


__all__ = ["Homeostat", "entropy_launch", "nudged", "violation"]
