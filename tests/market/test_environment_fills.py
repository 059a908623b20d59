"""Fills, costs and rewards computed by hand, one order against one bar."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.market.actions import encode_actions
from foxhunt_rt.market.walks import Walks

from .market_harness import Market, features, rollout
from .reference_environment import Costs

SHORT, FLAT, LONG = 0, 1, 2
QUARTER, HALF, THREE_QUARTERS, FULL = 0, 1, 2, 3
MARKET, LIMIT, STOP = 0, 1, 2
PASSIVE, NORMAL, AGGRESSIVE = 0, 1, 2

# 10 a tick, 1 a side, half-spread 1 tick, slippage 0.5, 1, 2 ticks by urgency, stops trigger 3 ticks away, 4 contracts.
COSTS = Costs(
    tick_value=10.0, fee=1.0, half_spread=1.0, slippage=1.0, slippage_range=0.0, urgency=(0.5, 1.0, 2.0),
    stop_offset=3.0, limit=4, drawdown_penalty=0.0, pnl_scale=100.0, time_scale=30.0,
)  # fmt: skip


def walk(start: int, end: int, flatten: int = 0) -> Walks:
    one = [np.array([x], np.int32) for x in (start, end, flatten, end - start - 1)]
    return Walks(*one)


def run(rt: Any, bars: list[tuple[float, ...]], actions: list[tuple[int, ...]], costs: Costs = COSTS,
        session: list[int] | None = None, flatten: int = 0) -> Any:  # fmt: skip
    """Walks all bars but, where the session goes on beyond the walk, one more that only keeps it open."""
    if session is None:
        bars, session = [*bars, bars[-1]], [0] * (len(bars) + 1)
        end = len(bars) - 1
    else:
        end = len(bars)
    market = Market(np.array(bars, np.float64), np.array(session), features(len(bars), 3))
    return rollout(rt, market, costs, walk(0, end, flatten), encode_actions(np.array(actions)).reshape(-1, 1))


LAST = (100.0, 100.0, 100.0, 100.0)  # the bar whose close is 100, after which the decision falls
CASES = {
    # name: (bar, direction, size, order, urgency), (contracts, price, net, cost)
    "market buy": ((101, 105, 100, 104), (LONG, FULL, MARKET, NORMAL), (4, 103.0, 36.0, 84.0)),
    "market buy, passive": ((101, 105, 100, 104), (LONG, FULL, MARKET, PASSIVE), (4, 102.5, 56.0, 64.0)),
    "market sell, aggressive": ((101, 105, 100, 104), (SHORT, HALF, MARKET, AGGRESSIVE), (-2, 98.0, -122.0, 62.0)),
    "market buy, quarter, gap up": ((120, 121, 119, 119), (LONG, QUARTER, MARKET, NORMAL), (1, 122.0, -31.0, 21.0)),
    "flat when flat: no order": ((101, 105, 100, 104), (FLAT, FULL, MARKET, NORMAL), (0, 0.0, 0.0, 0.0)),
    "limit buy, low at the limit": ((100, 101, 99, 100), (LONG, FULL, LIMIT, NORMAL), (0, 0.0, 0.0, 0.0)),
    "limit buy, through the limit": ((100, 101, 98, 100), (LONG, FULL, LIMIT, NORMAL), (4, 99.0, 36.0, 4.0)),
    "limit buy, open gaps below": ((95, 97, 94, 96), (LONG, FULL, LIMIT, NORMAL), (4, 96.0, -4.0, 44.0)),
    "limit buy, opens just below": ((98.5, 100, 98, 99), (LONG, HALF, LIMIT, AGGRESSIVE), (2, 99.0, -2.0, 2.0)),
    "limit sell, high at the limit": ((100, 101, 99, 100), (SHORT, FULL, LIMIT, NORMAL), (0, 0.0, 0.0, 0.0)),
    "limit sell, through the limit": ((100, 102, 99, 101.5), (SHORT, HALF, LIMIT, PASSIVE), (-2, 101.0, -12.0, 2.0)),
    "limit sell, open gaps above": ((106, 107, 105, 105), (SHORT, QUARTER, LIMIT, NORMAL), (-1, 105.0, -1.0, 11.0)),
    "stop buy, high one tick short": ((100, 102, 99, 102), (LONG, FULL, STOP, NORMAL), (0, 0.0, 0.0, 0.0)),
    "stop buy, high at the trigger": ((100, 103, 99, 102), (LONG, FULL, STOP, NORMAL), (4, 105.0, -124.0, 84.0)),
    "stop buy, gap through": ((110, 112, 109, 112), (LONG, FULL, STOP, PASSIVE), (4, 111.5, 16.0, 64.0)),
    "stop sell, low at the trigger": ((100, 101, 97, 98), (SHORT, FULL, STOP, NORMAL), (-4, 95.0, -124.0, 84.0)),
    "stop sell, gap through": ((90, 91, 88, 89), (SHORT, HALF, STOP, AGGRESSIVE), (-2, 87.0, -42.0, 62.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_order_by_hand(runtime: Any, name: str) -> None:
    bar, action, (contracts, price, net, cost) = CASES[name]
    out = run(runtime, [LAST, bar], [action])
    result = out.results[1]
    assert (result["contracts"], result["price"], result["net"], result["cost"]) == (contracts, price, net, cost)
    assert out.rows["reward"][0, 0] == np.float32(net)
    assert result["position"] == contracts
    assert result["exit_contracts"] == 0
    assert out.rows["ended"][0, 0] == 2  # the walk ends inside the session: truncated, and the position stays open


def test_slippage_grows_with_the_bar_range(runtime: Any) -> None:
    costs = dataclasses.replace(COSTS, slippage_range=0.1)
    out = run(runtime, [LAST, (101, 111, 91, 104)], [(LONG, FULL, MARKET, AGGRESSIVE)], costs)
    assert out.results[1]["price"] == 101 + 1 + 2 * (1 + 0.1 * 20)


def test_size_changes_and_a_flip_trade_the_difference(runtime: Any) -> None:
    costs = dataclasses.replace(COSTS, slippage=0.0)
    bars = [LAST] + [(100.0 + k, 101.0 + k, 99.0 + k, 100.0 + k) for k in range(1, 6)]
    actions = [
        (LONG, QUARTER, MARKET, NORMAL),  # buys 1 at 102
        (LONG, FULL, MARKET, NORMAL),  # buys 3 at 103
        (LONG, HALF, MARKET, NORMAL),  # sells 2 at 102
        (SHORT, THREE_QUARTERS, MARKET, NORMAL),  # sells 5 at 103
        (FLAT, FULL, MARKET, NORMAL),  # buys 3 at 106
    ]
    out = run(runtime, bars, actions, costs)
    results = out.results[1:6]
    assert results["contracts"].tolist() == [1, 3, -2, -5, 3]
    assert results["price"].tolist() == [102.0, 103.0, 102.0, 103.0, 106.0]
    assert results["position"].tolist() == [1, 4, 2, -3, 0]
    # Closes 101 .. 105. By hand: cash after each fill plus position * close, in money, minus one a contract.
    equity = np.cumsum(results["net"])
    assert equity.tolist() == [-11.0, -34.0, -16.0, -51.0, -114.0]
    # Mean entry 102.75 after the second fill; the fourth opens at 103 after a flip.
    portfolio = out.rows["next_portfolio"][:, 0]
    assert portfolio[:, 0].tolist() == [0.25, 1.0, 0.5, -0.75, 0.0]
    unrealized = [10 * 1 * (101 - 102), 10 * 4 * (102 - 102.75), 10 * 2 * (103 - 102.75), 10 * -3 * (104 - 103), 0]
    assert portfolio[:, 1] == pytest.approx([u / 100 for u in unrealized], abs=1e-7)
    assert portfolio[:, 2] == pytest.approx([1 / 31, 2 / 32, 3 / 33, 1 / 31, 0], abs=1e-7)
    assert portfolio[:, 3] == pytest.approx([0.11, 0.34, 0.16, 0.51, 1.14], abs=1e-7)


def test_a_sessions_last_close_forces_flat_with_costs(runtime: Any) -> None:
    bars = [LAST, (101, 105, 100, 104), (104, 106, 103, 105), (200, 200, 200, 200), (200, 201, 199, 200)]
    hold, flat = (LONG, FULL, MARKET, NORMAL), (FLAT, FULL, MARKET, NORMAL)
    out = run(runtime, bars, [hold, hold, flat], session=[0, 0, 0, 1, 1])
    last = out.results[2]
    # Nothing to trade in bar 2, then 4 contracts leave at 105 - half-spread 1 - aggressive slippage 2 = 102.
    assert (last["contracts"], last["exit_contracts"], last["exit_price"], last["position"]) == (0, -4, 102.0, 0)
    assert last["net"] == 40 * (102 - 104) - 4
    assert last["cost"] == 4 * (30 + 1)
    assert out.rows["ended"][:, 0].tolist() == [0, 1, 1]  # both sessions end in a terminal state
    # The overnight gap of 95 ticks was nobody's: the next session starts flat, at bar 3, with a clean account.
    assert out.rows["feature_row"][:, 0].tolist() == [0, 1, 3]
    assert out.rows["next_feature_row"][:, 0].tolist() == [1, 2, 4]
    assert out.rows["portfolio"][2, 0].tolist() == [0, 0, 0, 0]
    assert out.rows["reward"][2, 0] == 0
    assert not out.results[3]["visited"]
    assert out.results[4]["visited"]
    # An order in the last bar executes first, then leaves in the same bar.
    out = run(runtime, bars[:2], [hold], session=[0, 0])
    only = out.results[1]
    assert (only["contracts"], only["price"], only["exit_contracts"], only["exit_price"]) == (4, 103.0, -4, 101.0)
    assert only["net"] == 40 * (101 - 103) - 8
    assert only["position"] == 0


def test_the_end_of_a_walk_closes_only_an_evaluation(runtime: Any) -> None:
    bars = [LAST, (101, 105, 100, 104)]
    hold = [(LONG, FULL, MARKET, NORMAL)]
    assert run(runtime, bars, hold).results[1]["exit_contracts"] == 0
    closed = run(runtime, bars, hold, flatten=1)
    assert closed.results[1]["exit_contracts"] == -4
    assert closed.rows["ended"][0, 0] == 1
    assert closed.results[1]["net"] == 40 * (101 - 103) - 8


@pytest.mark.parametrize(
    ("limit", "contracts"), [(1, [1, 1, 1, 1]), (2, [1, 1, 2, 2]), (3, [1, 2, 2, 3]), (10, [3, 5, 8, 10])]
)
def test_sizes_are_quarters_of_the_limit_rounded_half_up_and_at_least_one(
    runtime: Any, limit: int, contracts: list[int]
) -> None:
    for size in range(4):
        out = run(runtime, [LAST, LAST], [(LONG, size, MARKET, NORMAL)], dataclasses.replace(COSTS, limit=limit))
        assert out.results[1]["position"] == contracts[size]
        assert out.rows["next_portfolio"][0, 0, 0] == np.float32(contracts[size] / limit)


def test_drawdown_reward_takes_off_only_what_deepens(runtime: Any) -> None:
    costs = dataclasses.replace(COSTS, drawdown_penalty=0.5, slippage=0.0, half_spread=0.0, fee=0.0)
    bars = [LAST] + [(c, c, c, c) for c in (100.0, 103.0, 101.0, 102.0, 99.0)]
    out = run(runtime, bars, [(LONG, QUARTER, MARKET, NORMAL)] * 5, costs)
    assert out.results["net"][1:6].tolist() == [0, 30, -20, 10, -30]  # reported, never penalized
    # Drawdown 0, 0, 20, 10, 40: the deepenings are 20 and 30.
    assert out.rows["reward"][:, 0].tolist() == [0, 30, -30, 10, -45]


def test_an_action_outside_the_space_places_no_order_and_is_counted(runtime: Any) -> None:
    market = Market(np.array([LAST, LAST, LAST, LAST], np.float64), np.zeros(4, int), features(4, 3))
    out = rollout(runtime, market, COSTS, walk(0, 3), np.array([[-1], [108]], np.int32))
    assert not out.results["contracts"].any()
    assert not out.results["position"].any()
    assert out.env["invalid_actions"][0] == 2
    assert out.rows["ended"][:, 0].tolist() == [4, 4]  # never drawn from the replay ring
    assert not out.rows["action"].any()
