"""A context in the ring: what is the same for all environments at an insert, against a plain record of what stood there when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import Batch, Replay, ReplayError

from .harness import sample, step_block
from .oracle import ABSENT, TERMINATED, TRUNCATED

C, E, OWN = 3, 4, 5


class Filled:
    """A ring over many inserts, each with a context of its own, and what was given to it."""

    def __init__(self, rt: Runtime, mode: str, n_step: int, inserts: int, capacity: int = 300, seed: int = 0) -> None:
        random, market = np.random.default_rng(seed), mode == "market"
        features = 2 if market else 0
        self.replay = Replay(rt, capacity, features + OWN + C, mode=mode, portfolio_dim=OWN + C if market else 0,
                             context_dim=C, n_step=n_step)  # fmt: skip
        self.replay.track_drawdown()
        if market:
            self.replay.set_feature_table(rt.array(np.zeros((7, features), np.float32), "features"))
        self.context = random.normal(size=(inserts, C)).astype(np.float32)
        self.own = random.normal(size=(inserts + 1, E, OWN)).astype(np.float32)
        self.final = random.normal(size=(inserts, E, OWN)).astype(np.float32)
        self.reward = random.normal(size=(inserts, E)).astype(np.float32)
        self.ended = random.choice([0, TERMINATED, TRUNCATED, ABSENT], (inserts, E), p=[0.8, 0.07, 0.07, 0.06])
        self.staging = staging = self.replay.staging(E)
        assert self.replay.context is not None and self.replay.drawdown is not None
        self.drawdown = []
        for t in range(inserts):
            self.replay.context.copy_from(self.context[t])
            following = np.where((self.ended[t] > 0)[:, None], self.final[t], self.own[t + 1])
            states: dict[str, Any] = dict(state=self.own[t], next_state=following)
            if market:
                states = dict(feature_row=np.zeros(E, np.int32), next_feature_row=np.zeros(E, np.int32),
                              portfolio=self.own[t], next_portfolio=following)  # fmt: skip
            self.replay.fill(staging, np.zeros(E, np.int32), self.reward[t], self.ended[t] == TERMINATED,
                             self.ended[t] == TRUNCATED, absent=self.ended[t] == ABSENT, **states)  # fmt: skip
            self.replay._launch_insert(rt.ungraphed("replay"), staging)
            self.replay.note_inserted(staging)
            self.drawdown.append(self.replay.drawdown.to_numpy()[0])


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("mode", ["vector", "market"])
@pytest.mark.parametrize("inserts", [40, 120], ids=["whole", "wrapped"])
def test_rows_hold_the_context_of_their_insert_and_of_the_next(
    runtime: Runtime, mode: str, n_step: int, inserts: int
) -> None:
    filled = Filled(runtime, mode, n_step, inserts)
    drawn = sample(filled.replay, Batch.allocate(runtime, 256, filled.replay.state_dim), step_block(runtime))
    newest, seen = inserts * E - 1, set()
    for k, row in enumerate(drawn["index"]):
        number = newest - (newest - int(row)) % filled.replay.capacity
        t, e = divmod(number, E)
        last = t
        while last < t + n_step - 1 and not filled.ended[last, e]:
            last += 1
        over = bool(filled.ended[last, e])
        seen.add(over)
        own, context = ((filled.final[last, e], filled.context[last]) if over
                        else (filled.own[last + 1, e], filled.context[last + 1]))  # fmt: skip
        width = filled.replay.state_dim
        for what, expected in (("state", (filled.own[t, e], filled.context[t])), ("next_state", (own, context))):
            found = drawn[what][k, width - OWN - C : width]
            np.testing.assert_array_equal(found, np.concatenate(expected), err_msg=f"{what} of row {row}, insert {t}")
            assert not drawn[what][k, width:].any()
    assert seen == {True, False}


@pytest.mark.parametrize("mode", ["vector", "market"])
def test_nothing_is_drawable_before_its_next_context_is_known(runtime: Runtime, mode: str) -> None:
    filled = Filled(runtime, mode, 2, 30)
    priority = filled.replay.priority.to_numpy()[: 30 * E].reshape(30, E)
    for e in range(E):
        for t in (28, 29):  # two inserts behind them are wanted
            ends = [filled.ended[u, e] in (TERMINATED, TRUNCATED) for u in range(t, 30)]
            gone = [filled.ended[u, e] == ABSENT for u in range(t, 30)]
            assert (priority[t, e] > 0.0) == (any(ends) and not any(gone[: ends.index(True)]))


def test_drawdown_is_that_of_the_rewards(runtime: Runtime) -> None:
    filled = Filled(runtime, "vector", 1, 60)
    total, peak, found = np.zeros(E), np.zeros(E), []
    for t in range(60):
        total += filled.reward[t].astype(np.float64)
        peak = np.maximum(peak, total)
        total[filled.ended[t] != 0] = peak[filled.ended[t] != 0] = 0.0
        going = filled.ended[t] == 0
        found.append((peak - total)[going].mean() if going.any() else 0.0)
    np.testing.assert_allclose(filled.drawdown, found, rtol=1e-12, atol=1e-12)
    assert max(found) > 1.0
    filled.replay.clear()
    assert filled.replay.drawdown is not None and filled.replay.account is not None
    assert not filled.replay.drawdown.to_numpy().any() and not filled.replay.account.to_numpy().any()
    with pytest.raises(ReplayError, match="from the first insert on"):
        filled.replay.track_drawdown()


def test_a_context_leaves_something_to_a_state(runtime: Runtime) -> None:
    for options in (dict(context_dim=4), dict(context_dim=2, mode="market", portfolio_dim=2), dict(context_dim=-1)):
        with pytest.raises(ReplayError, match="give fewer"):
            Replay(runtime, 256, 4, **options)  # type: ignore[arg-type]
