"""The market of known optimum: its chain, its bars, and that neither a sign nor holding earns half of what the optimum does."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.graph import Runtime
from foxhunt_rt.market.actions import encode_actions
from foxhunt_rt.market.baselines import backtest
from foxhunt_rt.market.environment import BarResults, MarketEnvironment, MarketTables
from foxhunt_rt.market.execution import ExecutionModel
from foxhunt_rt.market.known_optimum import FAST, MOVE, SETTINGS, SLOW, KnownMarket, simulate_known
from foxhunt_rt.market.metrics import summarize
from foxhunt_rt.market.walks import session_ends, session_walks

from .optimal_trader import POSITIONS, optimal_values, walk

CONFIG: MarketConfig = Config().merged({"market": SETTINGS}).market
LONG, SHORT, FLAT = 2, 0, 1
MARKET, LIMIT, STOP = 0, 1, 2


@pytest.fixture(scope="module")
def market() -> KnownMarket:
    return simulate_known(400, seed=1)


def solve(market: KnownMarket) -> tuple[np.ndarray, np.ndarray]:
    return optimal_values(market.transition, market.mean_move, market.side_cost, market.session_bars)


def ticks(market: KnownMarket, wanted: np.ndarray) -> np.ndarray:
    """Net ticks of each session."""
    net = backtest(market.bars, wanted, market.spec, CONFIG)["net"] / market.spec.tick_value
    return net.reshape(-1, market.session_bars).sum(axis=1)


def sharpe(market: KnownMarket, wanted: np.ndarray, *, overnight: bool = False) -> float:
    results = backtest(market.bars, wanted, market.spec, CONFIG, overnight=overnight)
    found = summarize(results, market.bars.ts, market.spec, capital=1e6, clock=market.bars.clock).sharpe
    assert found is not None
    return found


def test_the_same_seed_gives_the_same_bars(market: KnownMarket) -> None:
    again, other = simulate_known(400, seed=1), simulate_known(400, seed=2)
    np.testing.assert_array_equal(market.bars.close, again.bars.close)
    np.testing.assert_array_equal(market.state, again.state)
    assert (market.state != other.state).any()
    with pytest.raises(ValueError, match="at least 1 of 2"):
        simulate_known(0, seed=1)
    with pytest.raises(ValueError, match="a drift of 2 is no share"):
        simulate_known(1, seed=1, drift=2.0)


def test_without_drift_the_bars_are_noise(market: KnownMarket) -> None:
    """The chain walks as before and drives nothing: no state has a mean move, and the optimum is to stay flat."""
    noise = simulate_known(400, seed=1, drift=0.0)
    np.testing.assert_array_equal(noise.state, market.state)
    assert (noise.mean_move == 0).all() and not walk(solve(noise)[1], noise.state, noise.session_bars).any()
    move = np.diff(noise.bars.close) / noise.spec.tick
    for k in range(len(SLOW)):
        seen = move[noise.state[:-1] == k]
        assert abs(seen.mean()) <= 5.0 * seen.std() / np.sqrt(len(seen))


def test_the_chain_and_the_moves_are_as_declared(market: KnownMarket) -> None:
    """Frequencies of 48,000 bars within five standard errors."""
    n, states = len(market.state), len(SLOW)
    np.testing.assert_allclose(market.transition.sum(axis=1), 1.0)
    move = np.diff(market.bars.close) / market.spec.tick
    assert set(np.unique(move)) == {-MOVE, 0.0, MOVE}
    for k in range(states):
        at = market.state[:-1] == k
        visits = at.sum()
        assert visits > n / 40
        for found, expected in [((market.state[1:][at] == j).mean(), market.transition[k, j]) for j in range(states)] + [
            ((move[at] > 0).mean(), market.up[k]), ((move[at] < 0).mean(), market.down[k])]:  # fmt: skip
            assert abs(found - expected) <= 5.0 * np.sqrt(expected * (1.0 - expected) / visits)
    np.testing.assert_allclose(market.mean_move, -market.mean_move[::-1])  # the mirrored market is the market
    np.testing.assert_array_equal(market.features.values[:, 0], SLOW[market.state])
    np.testing.assert_array_equal(market.features.values[:, 1], FAST[market.state])


def test_features_are_causal(market: KnownMarket) -> None:
    """What is known at the close of bar t is the same in a market whose later moves are others: a longer one of the same seed
    draws anew, so the test is on the law: given the state, neither the move before nor the state before says more."""
    move = np.diff(market.bars.close) / market.spec.tick
    for k in range(len(SLOW)):
        at = (
            np.flatnonzero(market.state[1:-1] == k) + 1
        )  # the move into bar t is move[t - 1], the one out of it move[t]
        before, after = move[at - 1], move[at]
        correlation = np.corrcoef(before, after)[0, 1]
        assert abs(correlation) < 5.0 / np.sqrt(len(at))


def test_the_solver_against_a_tiny_problem_by_hand() -> None:
    """Two states, three bars: each first position with the best second one in either state, by hand."""
    transition, mean, cost, bars = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([1.5, -0.6]), 0.4, 3
    value, _ = optimal_values(transition, mean, cost, bars)
    for start in range(2):
        best = -np.inf
        for first in POSITIONS:
            total = -cost * abs(first) + first * mean[start]
            for following in range(2):  # the second decision may depend on the state then
                choices = [-cost * abs(p - first) + p * mean[following] - cost * abs(p) for p in POSITIONS]
                total += transition[start, following] * max(choices)
            best = max(best, total)
        assert value[0, start, 1] == pytest.approx(best, abs=1e-12)


def test_the_optimum_earns_what_the_solver_says_and_no_neighbour_more(market: KnownMarket) -> None:
    value, best = solve(market)
    stationary = np.bincount(market.state, minlength=len(SLOW)) / len(market.state)
    earned = ticks(market, walk(best, market.state, market.session_bars))
    expected = stationary @ value[0, :, 1]
    assert abs(earned.mean() - expected) <= 5.0 * earned.std() / np.sqrt(len(earned))
    random = np.random.default_rng(0)
    for _ in range(5):  # each differs in a tenth of the table
        other = np.where(random.random(best.shape) < 0.1, random.integers(-1, 2, best.shape), best)
        assert ticks(market, walk(other, market.state, market.session_bars)).mean() < earned.mean()


def test_myopic_sign_and_buy_and_hold_earn_at_most_half(market: KnownMarket) -> None:
    _, best = solve(market)
    optimum = sharpe(market, walk(best, market.state, market.session_bars))
    sign = np.sign(market.mean_move[market.state]).astype(np.int64)
    hold = np.ones(len(sign), np.int64)
    assert optimum > 10
    assert sharpe(market, sign) <= 0.5 * optimum
    assert sharpe(market, hold) <= 0.5 * optimum
    assert sharpe(market, hold, overnight=True) <= 0.5 * optimum
    # nor does the slow direction alone reach the 90 % that a learner is asked for
    assert sharpe(market, SLOW[market.state]) < 0.9 * optimum


def test_the_kernel_offers_what_the_solver_models(runtime: Runtime) -> None:
    """The optimum walked by the environment on the device earns to the cent what NumPy's backtest says; limit and stop orders
    never fill, and size and urgency change nothing."""
    market = simulate_known(40, seed=3, session_bars=31)
    _, best = solve(market)
    wanted = walk(best, market.state, market.session_bars)
    expected = backtest(market.bars, wanted, market.spec, CONFIG)
    bars, n = market.bars, len(market.bars)
    ends = session_ends(bars.session)
    ohlc = np.stack([bars.open, bars.high, bars.low, bars.close], axis=1)
    tables = MarketTables(runtime, ohlc, ends, market.features.values, market.spec.tick)
    environment = MarketEnvironment(runtime, tables, ExecutionModel.from_config(CONFIG, market.spec, 1.0), 40)
    walks = session_walks(ends, 0, n)
    results = BarResults(runtime, 0, n)
    action = runtime.zeros(40, np.int32, "action")
    plan = runtime.plan("walk")
    with plan.child("step", reads=[*environment.reads, action], writes=[*environment.writes, results.buffer]) as child:
        environment.record_step(child, action, None, None, results)
    step = plan.build(ungraphed=False)

    def run(order: int, size: int, urgency: int) -> np.ndarray:
        results.clear()
        environment.reset(walks)
        for j in range(market.session_bars - 1):
            direction = wanted.reshape(40, -1)[:, j] + 1
            parts = np.stack([direction, np.full(40, size), np.full(40, order), np.full(40, urgency)], axis=1)
            action.copy_from(encode_actions(parts))
            step.launch()
        return results.to_numpy()

    for size, urgency in ((0, 0), (3, 2)):
        found = run(MARKET, size, urgency)
        np.testing.assert_allclose(found["net"], expected["net"], atol=1e-9)
        np.testing.assert_array_equal(found["position"], expected["position"])
    assert np.abs(expected["contracts"]).sum() > 40
    for order in (LIMIT, STOP):
        assert (run(order, 3, 2)["contracts"] == 0).all()
