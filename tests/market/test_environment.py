"""The environment against the independent reference, random actions on simulated and real bars; its invariants."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foxhunt_rt.market.actions import ACTIONS, encode_actions, mirror_actions
from foxhunt_rt.market.environment import BarResults, MarketEnvironment, MarketTables
from foxhunt_rt.market.results import equity_curve, round_trips
from foxhunt_rt.market.walks import Walks, session_walks, split_window

from .market_harness import Market, Rollout, make, model, random_market, reference, rollout, shared_market, stage
from .reference_environment import ACTIONS as REFERENCE_ACTIONS
from .reference_environment import Costs, Row

TERMINATED, TRUNCATED, ABSENT = 1, 2, 4


def random_actions(seed: int, steps: int, environments: int) -> NDArray[np.int32]:
    """Half the time the action before is held, so that positions last."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, ACTIONS, (steps, environments)).astype(np.int32)
    for k in range(1, steps):
        actions[k] = np.where(rng.random(environments) < 0.5, actions[k - 1], actions[k])
    return actions


def close(name: str, got: Any, want: Any, absolute: float, relative: float) -> None:
    """|got - want| <= absolute + relative * |want|; prints the worst element."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    share = np.abs(got - want) / (absolute + relative * np.abs(want))
    assert np.isfinite(got).all(), f"{name} is not finite"
    worst = int(np.argmax(share)) if share.size else 0
    assert share.size == 0 or share.flat[worst] <= 1.0, (
        f"{name}[{worst}] = {got.flat[worst]!r}, not {want.flat[worst]!r}: {share.flat[worst]:.3g} of the tolerance"
    )


def compare(market: Market, out: Rollout, expected: list[list[Row]]) -> None:
    """Everything the device put out against the reference's rows. f32 outputs to 1e-6, f64 to 1e-12 relative."""
    steps = len(out.rows["ended"])
    for e, rows in enumerate(expected):
        n = len(rows)
        assert (out.rows["ended"][n:, e] == ABSENT).all()
        for name in ("feature_row", "next_feature_row", "action", "reward", "portfolio", "next_portfolio"):
            assert not out.rows[name][n:, e].any(), f"idle {name}"
        got = {name: x[:n, e] for name, x in out.rows.items()}
        assert got["feature_row"].tolist() == [r.bar for r in rows]
        assert got["next_feature_row"].tolist() == [r.next_bar for r in rows]
        ended = [TERMINATED * r.terminated + TRUNCATED * r.truncated for r in rows]
        assert got["ended"].tolist() == ended
        close("reward", got["reward"], [r.reward for r in rows], 1e-6, 1e-6)
        close("portfolio", got["portfolio"], np.reshape([r.portfolio for r in rows], (n, 4)), 1e-6, 1e-6)
        close("next_portfolio", got["next_portfolio"], np.reshape([r.next_portfolio for r in rows], (n, 4)), 1e-6, 1e-6)
        # Observations: row k is what was seen before step k; zeros once the walk is over.
        width = market.features.shape[1]
        states = out.states[:, e]
        assert states.shape[1] % 32 == 0
        assert states.shape[1] >= width + 4
        assert not states[n:].any()
        assert not states[:, width + 4 :].any()
        assert np.array_equal(states[:n, :width], market.features[[r.bar for r in rows]])
        assert np.array_equal(states[:n, width : width + 4], got["portfolio"])
    flat = sorted((row for rows in expected for row in rows), key=lambda r: r.next_bar)
    at = np.array([r.next_bar for r in flat])
    visited = np.zeros(len(out.results), bool)
    visited[at] = True
    assert np.array_equal(out.results["visited"] == 1, visited)
    result = out.results[at]
    assert result["position"].tolist() == [r.position for r in flat]
    fills = [{kind: (q, p) for kind, q, p in r.fills} for r in flat]
    for kind, contracts, price in (("order", "contracts", "price"), ("exit", "exit_contracts", "exit_price")):
        assert result[contracts].tolist() == [f.get(kind, (0, 0.0))[0] for f in fills]
        close(price, result[price], [f.get(kind, (0, 0.0))[1] for f in fills], 1e-9, 1e-12)
    close("net", result["net"], [r.net for r in flat], 1e-7, 1e-12)
    close("cost", result["cost"], [r.cost for r in flat], 1e-9, 1e-12)
    assert steps >= max(len(rows) for rows in expected)


def test_actions_are_numbered_as_in_the_reference() -> None:
    for action, (direction, share, order, urgency) in enumerate(REFERENCE_ACTIONS):
        parts = [("short", "flat", "long").index(direction), int(share * 4) - 1,
                 ("market", "limit", "stop").index(order), urgency]  # fmt: skip
        assert encode_actions(np.array(parts)) == action


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("environments", "count"), [(1, 1), (3, 28), (17, 29), (64, 61)])
def test_collection_agrees_with_the_reference(runtime: Any, seed: int, environments: int, count: int) -> None:
    market = random_market(seed, n=500, count=count)
    costs = Costs(limit=[4, 1, 7][seed], half_spread=[0.5, 1.0, 2.0][seed], drawdown_penalty=[0.0, 0.5, 0.0][seed])
    walks = split_window(market.ends, 11, 489, environments)
    actions = random_actions(seed, walks.longest + 2, environments)
    compare(market, rollout(runtime, market, costs, walks, actions), reference(market, costs, walks, actions))


@pytest.mark.parametrize("seed", range(3))
def test_evaluation_agrees_with_the_reference(runtime: Any, seed: int) -> None:
    market = random_market(100 + seed, n=700)
    costs = Costs(slippage_range=0.13)
    walks = session_walks(market.ends, 3, 695)
    actions = random_actions(seed, walks.longest, len(walks))
    out = rollout(runtime, market, costs, walks, actions)
    compare(market, out, reference(market, costs, walks, actions))
    assert ((out.rows["ended"] & TRUNCATED) == 0).all()


REAL = {
    "yndx": ("yndx_moex_stock_1m_2016_traded-bars.csv.gz", 0.1, None, 180),
    "es": ("es_futures_1m_2013-10_2020-01_all-expiries.csv.gz", 0.25, "ESZ3", 10),
}


@pytest.mark.parametrize("name", REAL)
def test_real_bars_agree_with_the_reference(runtime: Any, name: str) -> None:
    """Collected by 64 environments; then some sessions, evaluated side by side."""
    check_real(runtime, shared_market(*REAL[name]), 12_000, 4_000)


@pytest.mark.slow
def test_a_year_of_real_bars_agrees_with_the_reference(runtime: Any) -> None:
    market = shared_market(*REAL["yndx"])
    check_real(runtime, market, len(market.ohlc), len(market.ohlc))


def check_real(runtime: Any, market: Market, collected: int, evaluated: int) -> None:
    costs = Costs(tick_value=12.5)
    for seed, walks in (
        (5, split_window(market.ends, 0, collected, 64)),
        (6, session_walks(market.ends, 0, evaluated)),
    ):
        actions = random_actions(seed, walks.longest, len(walks))
        compare(market, rollout(runtime, market, costs, walks, actions), reference(market, costs, walks, actions))


def test_rewards_add_up_to_the_equity_that_the_fills_imply(runtime: Any) -> None:
    """Cash paid and received, fees, nothing else: computed from the fills alone."""
    market, costs = random_market(8), Costs()
    walks = session_walks(market.ends, 0, len(market.ohlc))
    actions = random_actions(8, walks.longest, len(walks))
    out = rollout(runtime, market, costs, walks, actions)
    r = out.results
    paid = r["contracts"] * r["price"] + r["exit_contracts"] * r["exit_price"]
    contracts = np.abs(r["contracts"]) + np.abs(r["exit_contracts"])
    final = -costs.tick_value * paid.sum() - costs.fee * contracts.sum()
    close("sum of net", equity_curve(r)[-1], final, 1e-6, 1e-12)
    close("sum of rewards", out.rows["reward"].astype(np.float64).sum(), final, 1e-2, 1e-6)
    assert contracts.sum() > 100
    # K15: the training reward is the reported net, to the last bit of f32: no factor stands between them.
    at = out.rows["next_feature_row"][out.rows["ended"] != ABSENT]
    assert np.array_equal(out.rows["reward"][out.rows["ended"] != ABSENT], r["net"][at].astype(np.float32))


def test_a_mirrored_action_in_the_mirrored_market_earns_the_same(runtime: Any) -> None:
    """K14: no reward is negated, whatever the side."""
    market, costs = random_market(9), Costs(slippage_range=0.07)
    mirrored = dataclasses.replace(market, ohlc=10000.0 - market.ohlc[:, [0, 2, 1, 3]])
    walks = split_window(market.ends, 0, len(market.ohlc), 8)
    actions = random_actions(9, walks.longest, 8)
    a = rollout(runtime, market, costs, walks, actions)
    b = rollout(runtime, mirrored, costs, walks, mirror_actions(actions))
    close("mirrored reward", b.rows["reward"], a.rows["reward"], 1e-4, 1e-6)
    assert np.array_equal(b.results["position"], -a.results["position"])
    assert a.results["position"].any()
    assert np.array_equal(b.results["contracts"], -a.results["contracts"])
    signed = np.array([-1, 1, 1, 1], np.float32)
    close("mirrored portfolio", b.rows["portfolio"] * signed, a.rows["portfolio"], 1e-5, 1e-5)
    assert a.rows["reward"].std() > 1


def test_results_are_recorded_only_for_the_bars_asked_for(runtime: Any) -> None:
    market, costs = random_market(10, n=300), Costs()
    walks = split_window(market.ends, 0, 300, 4)
    actions = random_actions(10, walks.longest, 4)
    full = rollout(runtime, market, costs, walks, actions).results
    env = make(runtime, market, costs, 4)
    part = BarResults(runtime, 100, 180)
    user = runtime.ungraphed("tests.environment")
    env.reset(walks)
    for row in actions:
        env.record_step(user, runtime.array(row, "action"), None, None, part)
    assert np.array_equal(part.to_numpy(), full[100:180])
    part.clear()
    assert not part.to_numpy()["visited"].any()


def test_idle_environments_stay_idle_and_reset_starts_them_again(runtime: Any) -> None:
    market, costs = random_market(12, n=200), Costs()
    walks = split_window(market.ends, 0, 200, 2)
    actions = random_actions(12, walks.longest + 5, 5)
    wide = rollout(runtime, market, costs, walks, actions, environments=5)  # 3 environments have no walk
    assert (wide.rows["ended"][:, 2:] == ABSENT).all()
    assert not wide.states[:, 2:].any()
    assert (wide.env["cursor"] + 1 >= wide.env["end"]).all()
    narrow = rollout(runtime, market, costs, walks, actions[:, :2])
    for name in narrow.rows:
        assert np.array_equal(wide.rows[name][:, :2], narrow.rows[name])
    env = make(runtime, market, costs, 5)
    assert env.active() == 0
    env.reset(walks)
    assert env.active() == 2
    assert env.longest == walks.longest


def test_unrolled_steps_in_a_graph_are_the_steps_launched_one_by_one(runtime: Any) -> None:
    """Three steps a launch, the walks' restart, and a change of costs between launches (K8: nothing of it is baked)."""
    market, costs, e = random_market(13, n=300), Costs(), 7
    walks = split_window(market.ends, 0, 300, e)
    launches = -(-walks.longest // 3)
    actions = random_actions(13, launches * 3, e)
    expected = rollout(runtime, market, costs, walks, actions)
    dear = rollout(runtime, market, dataclasses.replace(costs, fee=100.0), walks, actions)

    env = make(runtime, market, costs, e)
    action = runtime.zeros(3 * e, np.int32, "action")
    state = runtime.zeros((e, env.tables.padded_width), np.float32, "state")
    stages = [stage(runtime, e) for _ in range(3)]
    results = BarResults(runtime, 0, 300)
    plan = runtime.plan("environment")
    buffers = [b for part in stages for b in part.buffers]
    with plan.child("walk", reads=[*env.reads, action], writes=[*env.writes, *buffers, state, results.buffer]) as child:
        for k in range(3):
            env.record_step(child, action[k * e : (k + 1) * e], stages[k], state, results)
    step = plan.build()
    again = runtime.plan("restart")
    with again.child("restart", reads=env.reads, writes=env.writes) as child:
        env.record_reset(child)
    restart = again.build()
    env.reset(walks)

    for want, change in ((expected, None), (dear, dataclasses.replace(env.model, fee=100.0))):
        if change is not None:
            env.set_model(change)
        restart.launch()
        results.clear()
        for launch in range(launches):
            action.copy_from(actions[launch * 3 : launch * 3 + 3].reshape(-1))
            step.launch()
            for k in range(3):
                for name in want.rows:
                    got = getattr(stages[k], name).to_numpy()
                    assert np.array_equal(got, want.rows[name][launch * 3 + k]), name
        assert np.array_equal(state.to_numpy(), want.states[-1])
        assert np.array_equal(results.to_numpy(), want.results)
    assert not np.array_equal(dear.rows["reward"], expected.rows["reward"])


def trips_by_hand(results: Any, tick_value: float, fee: float) -> list[tuple[int, int, int, float, float]]:
    """Round trips fill by fill."""
    trips: list[tuple[int, int, int, float, float]] = []
    position, entry, largest, cash, fees = 0, -1, 0, 0.0, 0.0
    for bar, row in enumerate(results):
        fills = [(row["contracts"], row["price"]), (row["exit_contracts"], row["exit_price"])]
        for contracts, price in fills:
            left = int(contracts)
            while left:
                if position == 0:
                    entry, largest, cash, fees = bar, 0, 0.0, 0.0
                part = left
                if position * left < 0 and abs(left) > abs(position):
                    part = -position
                position += part
                left -= part
                cash -= part * price * tick_value
                fees += abs(part) * fee
                if abs(position) > abs(largest):
                    largest = position
                if position == 0:
                    trips.append((entry, bar, largest, cash - fees, fees))
    return trips


def test_round_trips(runtime: Any) -> None:
    market, costs = random_market(14, n=900), Costs()
    walks = session_walks(market.ends, 0, 900)
    actions = random_actions(14, walks.longest, len(walks))
    results = rollout(runtime, market, costs, walks, actions).results
    trips, hand = round_trips(results, costs.tick_value, costs.fee), trips_by_hand(results, costs.tick_value, costs.fee)
    assert len(trips) == len(hand) > 50
    for name, column in zip(("entry", "exit", "contracts"), zip(*hand, strict=True), strict=False):
        assert trips[name].tolist() == list(column)
    close("net", trips["net"], [t[3] for t in hand], 1e-6, 1e-12)
    close("fees", trips["fees"], [t[4] for t in hand], 1e-9, 1e-12)
    close("sum", trips["net"].sum(), results["net"].sum(), 1e-6, 1e-12)
    assert len(round_trips(results[:0], 1.0, 0.0)) == 0
    stop = int(np.flatnonzero(results["position"])[0]) + 1
    with pytest.raises(ValueError, match="open at the end"):
        round_trips(results[:stop], costs.tick_value, costs.fee)


def test_wrong_use_raises_before_the_device_sees_it(runtime: Any) -> None:
    market = random_market(15, n=50)
    ends, f = market.ends, market.features
    good = market.ohlc
    nan = good.copy()
    nan[7, 2] = np.nan
    crossed = good.copy()
    crossed[9, 1] = crossed[9, 2] - 1
    for ohlc, text in ((nan, "bar 7"), (crossed, "bar 9"), (good[:, :3], r"give \(n, 4\)")):
        with pytest.raises(ValueError, match=text):
            MarketTables(runtime, ohlc, ends, f, 1.0)
    with pytest.raises(ValueError, match=r"give int32 \(50,\)"):
        MarketTables(runtime, good, ends.astype(np.int64), f, 1.0)
    with pytest.raises(ValueError, match="session end"):
        MarketTables(runtime, good, np.zeros(50, np.int32), f, 1.0)
    with pytest.raises(ValueError, match=r"give float32 \(50, F\)"):
        MarketTables(runtime, good, ends, f[:-1], 1.0)
    tables = MarketTables(runtime, good, ends, f, 1.0)
    env = MarketEnvironment(runtime, tables, model(Costs()), 2)
    with pytest.raises(ValueError, match="3 walks for 2"):
        env.reset(split_window(ends, 0, 50, 3))
    one = np.array([0], np.int32)
    with pytest.raises(ValueError, match="leaves the 50 bars"):
        env.reset(Walks(one, one + 51, one, one))
    with pytest.raises(ValueError, match="environments, Sp"):
        env.record_observe(runtime.ungraphed("tests.environment"), runtime.zeros((2, 9), np.float32, "state"))
    with pytest.raises(ValueError, match="make new tables"):
        env.set_model(model(Costs(), tick=0.5))
    with pytest.raises(ValueError, match="pnl_scale"):
        model(Costs(pnl_scale=0.0))
    env.reset(split_window(ends, 0, 50, 2))
    env.record_step(runtime.ungraphed("tests.environment"), runtime.array(np.array([5, 108], np.int32), "action"))
    with pytest.raises(RuntimeError, match="environment 1 met 1 actions"):
        env.check()
