"""Walks over windows, the factored action, and the costs' way from the configuration: no device needed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from foxhunt_rt.config import MarketConfig
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.actions import (
    ACTIONS,
    BRANCHES,
    action_name,
    decode_actions,
    encode_actions,
    mirror_actions,
)
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.environment import bars_in_ticks
from foxhunt_rt.market.execution import PORTFOLIO_FEATURES, ExecutionModel, fit_pnl_scale_ticks
from foxhunt_rt.market.walks import Walks, session_ends, session_walks, split_window
from foxhunt_rt.replay import ActionError


def transitions(walks: Walks, ends: np.ndarray) -> list[tuple[int, int]]:
    """(bar, successor) of every walk, by the rule in words."""
    out = []
    for start, end in zip(walks.start, walks.end, strict=True):
        out += [(t, t + 1) for t in range(start, end - 1) if ends[t] != t]
    return out


def test_session_ends() -> None:
    assert session_ends([3, 3, 3, 9, 4, 4]).tolist() == [2, 2, 2, 3, 5, 5]
    assert session_ends([1]).tolist() == [0]
    with pytest.raises(ValueError, match="one number a bar"):
        session_ends([])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("environments", [1, 2, 7, 50])
def test_every_transition_of_a_window_belongs_to_one_walk(seed: int, environments: int) -> None:
    rng = np.random.default_rng(seed)
    session = np.repeat(np.arange(200), rng.integers(1, 9, 200))
    ends, first, stop = session_ends(session), int(rng.integers(0, 30)), len(session) - int(rng.integers(0, 30))
    expected = [(t, t + 1) for t in range(first, stop - 1) if session[t] == session[t + 1]]
    walks = split_window(ends, first, stop, environments)
    assert len(walks) == environments
    assert not walks.flatten.any()
    assert transitions(walks, ends) == expected
    assert walks.steps.sum() == len(expected)
    assert np.ptp(walks.steps) <= 1
    assert walks.longest == walks.steps.max()
    by_session = session_walks(ends, first, stop)
    assert by_session.flatten.all()
    assert transitions(by_session, ends) == expected
    assert all(np.unique(session[a:b]).size == 1 for a, b in zip(by_session.start, by_session.end, strict=True))
    assert by_session.steps.tolist() == (by_session.end - by_session.start - 1).tolist()


def test_windows_that_hold_nothing_are_refused() -> None:
    ends = session_ends([0, 1, 2, 2])
    assert split_window(ends, 0, 4, 1).start.tolist() == [2]
    with pytest.raises(ValueError, match="hold 1 decisions for 2"):
        split_window(ends, 0, 4, 2)
    with pytest.raises(ValueError, match="hold no decision"):
        session_walks(ends, 0, 3)
    for first, stop in ((-1, 3), (2, 2), (0, 5)):
        with pytest.raises(ValueError, match="not inside the 4 bars"):
            session_walks(ends, first, stop)


def test_actions_round_trip_with_direction_slowest() -> None:
    every = list(itertools.product(*(range(n) for n in BRANCHES)))
    codes = encode_actions(np.array(every))
    assert codes.dtype == np.int32
    assert codes.tolist() == list(range(ACTIONS))
    assert decode_actions(codes).tolist() == [list(parts) for parts in every]
    assert decode_actions(107).tolist() == [2, 3, 2, 2]
    assert action_name(0) == "short quarter market passive"
    assert mirror_actions(mirror_actions(codes)).tolist() == codes.tolist()
    assert decode_actions(mirror_actions(codes))[:, 0].tolist() == [2 - parts[0] for parts in every]
    names = ("ACTION_DIRECTIONS", "ACTION_SIZES", "ACTION_ORDERS", "ACTION_URGENCIES")
    assert tuple(abi.constant(name) for name in names) == BRANCHES
    assert abi.constant("ACTION_COUNT") == ACTIONS
    assert abi.constant("PORTFOLIO_FEATURES") == PORTFOLIO_FEATURES
    for bad in ([3, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0]):
        with pytest.raises(ActionError):
            encode_actions(np.array(bad))
    for wrong in (108, -1, 1.5):
        with pytest.raises(ActionError):
            decode_actions(wrong)


def test_prices_on_the_tick_grid_are_exact_in_ticks() -> None:
    prices = np.array([[1148.9, 1149.0, 1148.8, 1148.9], [0.1, 0.3, 0.1, 0.2]])
    assert bars_in_ticks(prices, 0.1).tolist() == [[11489, 11490, 11488, 11489], [1, 3, 1, 2]]
    off = bars_in_ticks(np.full((1, 4), 1650.3), 0.25)
    assert off.dtype == np.float32
    assert off[0, 0] == np.float32(1650.3 / 0.25)
    with pytest.raises(ValueError, match="larger tick"):
        bars_in_ticks(np.full((1, 4), 170_000.0), 0.01)


def test_the_model_takes_costs_from_the_contract_and_the_rest_from_the_configuration() -> None:
    config = dataclasses.replace(
        MarketConfig(), slippage_urgency=(0.1, 0.2, 0.3), slippage_range=0.4, stop_offset_ticks=5.0, time_scale=6.0,
        position_limit=7, reward="drawdown", drawdown_penalty=0.8,
    )  # fmt: skip
    es = PRESETS["ES"]
    got = ExecutionModel.from_config(config, es, pnl_scale_ticks=20.0)
    costs = (0.25, 12.5, es.fee, es.half_spread_ticks, es.slippage_ticks, 0.4, (0.1, 0.2, 0.3), 5.0)
    assert got == ExecutionModel(*costs, 7, 0.8, 20 * 12.5 * 7, 6.0)
    assert ExecutionModel.from_config(dataclasses.replace(config, reward="net"), es, 20.0).drawdown_penalty == 0.0
    for reward in ("sharpe", "rank"):
        with pytest.raises(NotImplementedError, match=reward):
            ExecutionModel.from_config(dataclasses.replace(config, reward=reward), es, 20.0)


def test_the_pnl_scale_sees_the_training_window_only() -> None:
    close = np.array([100.0, 101.0, 99.0, 500.0, 502.0, 9999.0, 1.0])
    ends = session_ends([0, 0, 0, 1, 1, 1, 1])
    want = np.sqrt(60 * np.mean(np.array([1.0, -2.0, 2.0]) ** 2)) / 0.5
    assert fit_pnl_scale_ticks(close, ends, 0, 5, 0.5) == pytest.approx(want, rel=1e-12)
    assert fit_pnl_scale_ticks(np.ones(7), ends, 0, 7, 0.5) == 1.0
    with pytest.raises(ValueError, match="no move"):
        fit_pnl_scale_ticks(close, ends, 2, 4, 0.5)
