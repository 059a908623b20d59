"""What collection adds to the steps taken: counterfactual rows, and rows stored as steps of the mirrored market.

    replay.set_mirror(mirror_sign(config.market, features.directional))     where rows are mirrored, before a draw is recorded
    augment = augmentation(rt, 64, config.market, control)                  None where both are off
    environment.record_step(child, action, replay.staging(augment.rows), state, augment=augment)

The rows are made by the environment's own kernel from the account and the bars as the step finds them. Semantics, the table of
cycles, and what the metrics mean: docs/counterfactual.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.kernels import abi

from .execution import PORTFOLIO_DIRECTIONAL

if TYPE_CHECKING:
    from foxhunt_rt.config import MarketConfig
    from foxhunt_rt.graph import Runtime

__all__ = ["CYCLE_NAMES", "NO_AUGMENTATION", "Augmentation", "augmentation", "mirror_sign"]

CYCLE_NAMES = ("direction", "smaller", "larger", "order", "urgency", "flat")
"""Of the cycles, in the order of their numbers."""

#: What a step that adds nothing is launched with.
NO_AUGMENTATION: dict[str, Any] = {
    "control": None, "draws": None, "counts": None, "C": 0, "cycles": 0, "mirror_share": 0.0,
}  # fmt: skip


class Augmentation:
    """Counterfactual and mirrored rows of E environments.

    Parameters
    ----------
    rt : Runtime
    environments : int
        E.
    config : MarketConfig
        Its sections `counterfactual` and `mirror`.
    control : Buffer of control_block, (1,)
        Read: seed.
    label : str

    Attributes
    ----------
    counterfactuals : int
        C, counterfactual rows of a step: `share` of E, rounded up. Each belongs to a run of environments, of which one is
        drawn each step.
    rows : int
        E + C, rows of a step.
    mirror_share : float
        Chance that a row is stored mirrored; 0 where none is.

    Notes
    -----
    Allocates E * 88 bytes. The draws come from Philox(seed, counter of the environment, RNG_MARKET).
    """

    def __init__(self, rt: Runtime, environments: int, config: MarketConfig, control: Buffer,
                 label: str = "augment") -> None:  # fmt: skip
        added, mirror = config.counterfactual, config.mirror
        self.environments, self.control = environments, control
        self.counterfactuals = math.ceil(added.share * environments) if added.enabled else 0
        self.cycles = sum(1 << cycle for cycle in added.cycles) if added.enabled else 0
        self.mirror_share = mirror.share if mirror.enabled else 0.0
        self.draws = rt.zeros(environments, np.uint64, f"{label}.draws")
        self.counts = rt.zeros(environments, abi.dtype("augment_counts"), f"{label}.counts")

    @property
    def rows(self) -> int:
        return self.environments + self.counterfactuals

    @property
    def reads(self) -> list[Buffer]:
        return [self.control]

    @property
    def writes(self) -> list[DeviceBuffer]:
        return [self.draws, self.counts]

    def launch_args(self) -> dict[str, Any]:
        """Fields of `env_step` beside those of the environment."""
        return {"control": self.control, "draws": self.draws, "counts": self.counts, "C": self.counterfactuals,
                "cycles": self.cycles, "mirror_share": self.mirror_share}  # fmt: skip

    def begin(self) -> None:
        """Counts from 0 again, in the order of the runtime's stream: at the start of a pass. Does not synchronize."""
        self.counts.fill(0)

    def reset(self) -> None:
        """Starts the random numbers again from the first, in stream order: part of a fold's reset. Does not synchronize."""
        self.draws.fill(0)
        self.begin()

    def report(self) -> dict[str, Any]:
        """What was added since `begin`, JSON-ready. Synchronizes.

        Returns
        -------
        dict
            `rows`: all that were inserted and may be drawn; `counterfactual_share`, `mirrored_share` of them;
            `reward_difference`: mean over the counterfactual rows of their reward less that of the step taken, money; and
            `cycles`: the same by cycle, with `rows`. Means of no rows are None.
        """
        counts = self.counts.to_numpy()
        added = counts["counterfactual"].sum(axis=0, dtype=np.int64)
        difference = counts["difference"].sum(axis=0)
        rows = int(counts["rows"].sum(dtype=np.int64) + added.sum())

        def mean(total: float, n: int) -> float | None:
            return total / n if n else None

        return {
            "rows": rows,
            "counterfactual_share": mean(int(added.sum()), rows),
            "mirrored_share": mean(int(counts["mirrored"].sum(dtype=np.int64)), rows),
            "reward_difference": mean(float(difference.sum()), int(added.sum())),
            "cycles": {name: {"rows": int(n), "reward_difference": mean(float(d), int(n))}
                       for name, n, d in zip(CYCLE_NAMES, added, difference, strict=True)},
        }  # fmt: skip


def augmentation(rt: Runtime, environments: int, config: MarketConfig, control: Buffer) -> Augmentation | None:
    """What a configuration asks for; None, and no memory, where it asks for nothing."""
    if not (config.counterfactual.enabled or config.mirror.enabled):
        return None
    return Augmentation(rt, environments, config, control)


def mirror_sign(
    config: MarketConfig, directional: ArrayLike, portfolio_width: int = len(PORTFOLIO_DIRECTIONAL)
) -> NDArray[np.float32] | None:
    """Factors on a state for `Replay.set_mirror`, float32 (F + P,); None where a configuration mirrors no row.

    `directional`, bool (F,): columns of the feature table that change sign in the mirrored market: `FeatureTable.directional`.
    `portfolio_width`: P, the portfolio features and, where there is one, the goal slot, which is the same in both markets.
    """
    if not config.mirror.enabled:
        return None
    goal = np.zeros(portfolio_width - len(PORTFOLIO_DIRECTIONAL), np.bool_)
    columns = np.concatenate([np.asarray(directional, np.bool_), PORTFOLIO_DIRECTIONAL, goal])
    return np.where(columns, np.float32(-1.0), np.float32(1.0))
