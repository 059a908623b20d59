"""Conviction in the environment: it scales the size of an order and nothing else. The oracle is the environment without it, at
the action of the size that is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foxhunt_rt.market.actions import decode_actions, encode_actions
from foxhunt_rt.market.environment import BarResults
from foxhunt_rt.market.walks import split_window

from .market_harness import Market, make, random_market, stage
from .reference_environment import Costs

E, STEPS = 5, 90
NAMES = ("feature_row", "next_feature_row", "portfolio", "next_portfolio", "reward", "ended")
Found = tuple[dict[str, NDArray[Any]], NDArray[Any]]


def walk(rt: Any, market: Market, actions: NDArray[np.int32], conviction: NDArray[np.float32] | None) -> Found:
    """Rows (STEPS, E) by name, `bar_result` (n,)."""
    env = make(rt, market, Costs(slippage_range=0.07, limit=4), E)
    env.reset(split_window(market.ends, 0, len(market.ohlc), E))
    user, action = rt.ungraphed("tests.conviction"), rt.zeros(E, np.int32, "action")
    staging, results = stage(rt, E), BarResults(rt, 0, len(market.ohlc))
    scale = rt.zeros(E, np.float32, "conviction")
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in NAMES}
    for k in range(STEPS):
        action.copy_from(actions[k])
        if conviction is not None:
            scale.copy_from(conviction[k])
        env.record_step(user, action, staging, results=results, conviction=None if conviction is None else scale)
        for name, found in rows.items():
            found.append(getattr(staging, name).to_numpy())
    found = {name: np.stack(parts) for name, parts in rows.items()}, results.to_numpy()
    for buffer in (action, scale, results.buffer, staging.words):
        buffer.free()
    return found


@pytest.fixture(scope="module")
def market() -> Market:
    return random_market(21)


def random_actions(seed: int, **fixed: int) -> NDArray[np.int32]:
    random = np.random.default_rng(seed)
    parts = np.stack([random.integers(0, n, (STEPS, E)) for n in (3, 4, 3, 3)], -1)
    for at, value in fixed.items():
        parts[..., ("direction", "size", "order", "urgency").index(at)] = value
    return encode_actions(parts)


def same(one: Found, other: Found, *leave: str) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(one[0][name], other[0][name], name)
    for name in one[1].dtype.names or ():
        if name not in leave:
            np.testing.assert_array_equal(one[1][name], other[1][name], name)


def test_one_is_as_without(runtime: Any, market: Market) -> None:
    actions = random_actions(1)
    same(walk(runtime, market, actions, np.ones((STEPS, E), np.float32)), walk(runtime, market, actions, None))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_share_of_the_full_size_is_the_action_of_that_size(runtime: Any, market: Market, share: float) -> None:
    """Fills, costs, the account, reward and reported net are those of what was traded: nothing else is scaled."""
    full = random_actions(2, size=3)
    smaller = random_actions(2, size=round(4 * share) - 1)
    scaled = walk(runtime, market, full, np.full((STEPS, E), share, np.float32))
    same(scaled, walk(runtime, market, smaller, None), "action")
    assert np.abs(scaled[1]["contracts"]).sum() > 50


def test_what_is_under_half_a_contract_is_none(runtime: Any, market: Market) -> None:
    """And what is held is closed, by an order of the type and urgency that were chosen."""
    full = random_actions(3, size=3)
    parts = decode_actions(full)
    parts[..., 0] = 1
    for share in (0.0, 0.12):
        scaled = walk(runtime, market, full, np.full((STEPS, E), share, np.float32))
        same(scaled, walk(runtime, market, encode_actions(parts), None), "action")
    assert np.abs(walk(runtime, market, full, np.full((STEPS, E), 0.125, np.float32))[1]["contracts"]).sum() > 0


def test_each_environment_has_its_own(runtime: Any, market: Market) -> None:
    full = random_actions(4, size=3)
    quarters = np.random.default_rng(5).integers(1, 5, (STEPS, E))
    parts = decode_actions(full)
    parts[..., 1] = quarters - 1
    scaled = walk(runtime, market, full, (quarters / 4).astype(np.float32))
    same(scaled, walk(runtime, market, encode_actions(parts), None), "action")
