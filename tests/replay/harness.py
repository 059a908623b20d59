"""What the replay tests share: a filled ring beside its oracle, and single launches of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch, Replay, Staging

from .oracle import ABSENT, RingOracle, Transition


def step_block(runtime: Runtime, **values: Any) -> Any:
    """A step_block in device memory; what is not given has values no test should need to know."""
    block = np.zeros(1, abi.dtype("step_block"))
    defaults = {"seed": 0x1234_5678_9ABC, "rng_step": 7, "gamma": 0.9, "reward_scale": 1.0, "alpha_per": 0.6,
                "eps_per": 1e-6, "min_priority": 0xFFFFFFFF}  # fmt: skip
    for name, value in (defaults | values).items():
        block[name] = value
    buffer = runtime.empty(1, abi.dtype("step_block"), "step")
    buffer.copy_from(block)
    return buffer


def poisoned_batch(runtime: Runtime, size: int, state_dim: int) -> Batch:
    """A batch that holds nothing right yet."""
    batch = Batch.allocate(runtime, size, state_dim)
    for buffer in batch.sampled:
        buffer.copy_from(np.full(buffer.shape, -77, buffer.dtype))
    return batch


def sample(replay: Replay, batch: Batch, step: Any) -> dict[str, npt.NDArray[Any]]:
    """Draws, ungraphed, and reads everything back."""
    replay.record_sample(replay.runtime.ungraphed("test"), batch, step)  # type: ignore[arg-type]
    names = ("state", "next_state", "action", "ret", "discount", "index", "priority")
    return {name: getattr(batch, name).to_numpy() for name in names}


def set_priorities(replay: Replay, rows: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """P = value for ascending rows, by the kernels of per_priority with alpha 1 and eps 0."""
    batch = Batch.allocate(replay.runtime, len(rows), replay.state_dim)
    batch.index.copy_from(rows.astype(np.int32))
    batch.td_error.copy_from(values.astype(np.float32))
    step = step_block(replay.runtime, alpha_per=1.0, eps_per=0.0)
    replay.record_priorities(replay.runtime.ungraphed("test"), batch, step)  # type: ignore[arg-type]


def filled(runtime: Runtime, capacity: int, rows: int, **options: Any) -> Replay:
    """A ring with `rows` drawable rows of priority 1 in vector mode: each an episode of its own. Row i has state i."""
    replay = Replay(runtime, capacity, 1, final_observations=capacity, **options)
    per_insert = max(d for d in range(1, min(rows, capacity // (replay.n_step + 1)) + 1) if rows % d == 0)
    staging = replay.staging(per_insert)
    for first in range(0, rows, per_insert):
        numbers = np.arange(first, first + per_insert)
        replay.insert_batch(staging, numbers % 1000, numbers, np.ones(per_insert, bool), np.zeros(per_insert, bool),
                            state=numbers[:, None], next_state=numbers[:, None] + 0.5)  # fmt: skip
    return replay


class Filler:
    """Random transitions into a ring and its oracle at once."""

    def __init__(self, replay: Replay, environments: int, seed: int, end_chance: float = 0.15, bars: int = 50) -> None:
        self.replay, self.environments, self.end_chance, self.bars = replay, environments, end_chance, bars
        self.random = np.random.default_rng(seed)
        self.market = replay.mode == "market"
        self.staging: Staging = replay.staging(environments)
        finals = replay.final_observations or 1 << 60
        self.oracle = RingOracle(replay.capacity, environments, replay.n_step, self.market, finals)
        self.features = self.random.normal(size=(bars, replay.state_dim - replay.portfolio_dim + 3)).astype(np.float32)
        if self.market:
            replay.set_feature_table(replay.runtime.array(self.features, "features"))
        self.now = self.random.normal(size=(environments, replay.state_dim)).astype(np.float32)

    def insert(self, inserts: int = 1) -> None:
        for _ in range(inserts):
            self._insert()

    def _insert(self) -> None:
        e, replay, random = self.environments, self.replay, self.random
        action = random.integers(0, 100, e)
        reward = random.normal(size=e).astype(np.float32)
        terminated, truncated = random.random((2, e)) < self.end_chance
        ended = terminated * 1 + truncated * 2
        if self.market:
            f, p = replay.state_dim - replay.portfolio_dim, replay.portfolio_dim
            row, following = random.integers(0, self.bars, (2, e))
            own, next_own = random.normal(size=(2, e, p)).astype(np.float32)
            states = {"feature_row": row, "next_feature_row": following, "portfolio": own, "next_portfolio": next_own}
            before = np.concatenate([self.features[row, :f], own], axis=1)
            after = np.concatenate([self.features[following, :f], next_own], axis=1)
        else:
            before, after = self.now, random.normal(size=(e, replay.state_dim)).astype(np.float32)
            states = {"state": before, "next_state": after}
            fresh = random.normal(size=after.shape).astype(np.float32)
            self.now = np.where(ended[:, None] > 0, fresh, after)
        replay.insert_batch(self.staging, action, reward, terminated, truncated, **states)
        self.oracle.insert(
            [Transition(before[i], after[i], int(action[i]), float(reward[i]), int(ended[i])) for i in range(e)]
        )


def drawable(replay: Replay) -> npt.NDArray[np.int64]:
    """Rows with priority."""
    return np.flatnonzero(replay.priority.to_numpy())


def check_sums(replay: Replay) -> None:
    """Every level holds exactly what the level below adds up to."""
    priority, block_sum = replay.priority.to_numpy(), replay.block_sum.to_numpy()
    from .oracle import tree_sums

    expected = tree_sums(priority)
    np.testing.assert_array_equal(block_sum[: len(expected)], expected)
    assert not block_sum[len(expected) :].any()
    if replay.super_sum is not None:
        upper, expected = replay.super_sum.to_numpy(), tree_sums(block_sum)
        np.testing.assert_array_equal(upper[: len(expected)], expected)
        assert not upper[len(expected) :].any()


__all__ = [
    "ABSENT",
    "Filler",
    "check_sums",
    "drawable",
    "filled",
    "poisoned_batch",
    "sample",
    "set_priorities",
    "step_block",
]
