"""Training on the market whose optimum is known: what share of it the policy earns on sessions it has not seen.

pytest --slow -s tests/train/test_known_optimum.py        prints the table of docs/training.md
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.graph import Runtime
from foxhunt_rt.market.baselines import backtest, baseline
from foxhunt_rt.market.folds import walk_forward
from foxhunt_rt.market.known_optimum import SETTINGS, KnownMarket, simulate_known
from foxhunt_rt.market.metrics import summarize
from foxhunt_rt.market.walks import session_ends
from foxhunt_rt.train import DataSet, WalkForward

from ..market.optimal_trader import optimal_values, walk

#: One fold. A window of one step, since an uncorrected longer one charges a position with what exploration does to it next; a
#: discount that sees to the end of a position, some 40 bars on; the cross-entropy from the start.
CONFIG = Config().merged({
    "network": {"hidden": [64, 64]},
    "replay": {"capacity": 131072, "batch": 64, "n_step": 1},
    "loss": {"gamma": 0.99, "alpha_c51_start": 1.0, "grad_budget": 0.0},
    "optim": {"lr": 1e-3, "lr_min": 1e-5, "tau_start": 0.01, "tau_end": 0.01},
    "train": {"folds": 1, "epochs": 10, "steps_per_epoch": 2000, "epsilon_start": 0.5, "epsilon_end": 0.02},
    "market": {**SETTINGS, "environments": 32},
})  # fmt: skip
SESSIONS = 400


def prepare(market: KnownMarket, config: Config) -> DataSet:
    folds = walk_forward(len(market.bars), folds=1, validation_share=0.2, test_share=0.2, embargo=config.replay.n_step + 1,
                         window="rolling")  # fmt: skip
    return DataSet(market.bars, market.spec, market.features, session_ends(market.bars.session), folds)


def train(rt: Runtime, seed: int, config: Config = CONFIG, sessions: int = SESSIONS) -> dict[str, Any]:
    """Trains with a seed on a market of that seed; Sharpe ratios and net profits of the test window, against the optimum's."""
    config = config.merged({"train": {"seed": seed}})
    market = simulate_known(sessions, 100 + seed)
    training = WalkForward(rt, prepare(market, config), config)
    try:
        test = training.run()["test"][0]
        first, stop = training.world.folds[0].test
        capital = training.world.window(first, stop).capital
    finally:
        training.close()
    _, best = optimal_values(market.transition, market.mean_move, market.side_cost, market.session_bars)
    bars = market.bars.slice(first, stop)

    def judge(wanted: Any) -> Any:
        results = backtest(bars, wanted[first:stop], market.spec, config.market)
        return summarize(results, bars.ts, market.spec, capital=capital, clock=bars.clock)

    optimum = judge(walk(best, market.state, market.session_bars))
    myopic = judge(np.sign(market.mean_move[market.state]).astype(np.int64))
    return {"seed": seed, "sharpe": test["sharpe"], "optimum": optimum.sharpe, "share": (test["sharpe"] or 0.0) / optimum.sharpe,
            "profit_share": test["net_pnl"] / optimum.net_pnl, "myopic_share": myopic.sharpe / optimum.sharpe,
            "trades": test["trades"], "optimum_trades": optimum.trades}  # fmt: skip


def train_on_noise(rt: Runtime, seed: int, config: Config = CONFIG, sessions: int = SESSIONS) -> dict[str, Any]:
    """Trains where nothing can be earned: trades and loss of the test window, as shares of the random policy's."""
    config = config.merged({"train": {"seed": seed}})
    market = simulate_known(sessions, 100 + seed, drift=0.0)
    training = WalkForward(rt, prepare(market, config), config)
    try:
        test = training.run()["test"][0]
        first, stop = training.world.folds[0].test
    finally:
        training.close()
    random = summarize(baseline("random", market.bars.slice(first, stop), market.spec, config.market, seed=seed),
                       market.bars.slice(first, stop).ts, market.spec, capital=1e6, clock=market.bars.clock)  # fmt: skip
    return {"seed": seed, "trades": test["trades"], "trades_share": test["trades"] / random.trades,
            "loss_share": max(0.0, -test["net_pnl"]) / random.costs}  # fmt: skip


def test_a_short_training_is_judged(runtime: Runtime) -> None:
    """The plumbing of the proof, in seconds."""
    config = CONFIG.merged({"network": {"hidden": [8]}, "train": {"epochs": 1, "steps_per_epoch": 5}})
    found = train(runtime, 0, config, sessions=40)
    assert found["optimum"] > 0 and found["share"] <= 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("what", ["mirror", "counterfactual"])
def test_it_learns_with_what_collection_adds(runtime: Runtime, what: str) -> None:
    """Half the rows mirrored, or the steps that were not taken: rewards of the wrong sign would teach the opposite (K14)."""
    found = train(runtime, 0, CONFIG.merged({"market": {what: {"enabled": True}}}))
    print({name: round(value, 3) for name, value in found.items()})
    assert found["share"] >= 0.7


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 5 seeds of about a minute each on two idle cores
def test_it_earns_nine_tenths_of_the_optimum(runtime: Runtime) -> None:
    """Mean over five seeds; the rule that follows the slow direction alone would not do."""
    found = []
    for seed in range(5):
        found.append(train(runtime, seed))
        print({name: round(value, 3) for name, value in found[-1].items()})
    shares = np.array([f["share"] for f in found])
    print(
        f"share of the optimum's Sharpe ratio: mean {shares.mean():.3f}, from {shares.min():.3f} to {shares.max():.3f}"
    )
    assert shares.mean() >= 0.9
    assert np.mean([f["myopic_share"] for f in found]) <= 0.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_noise_it_stops_trading(runtime: Runtime) -> None:
    """Where no trade earns its costs: at most a tenth of the random policy's trades, and a twentieth of its costs."""
    for seed in range(3):
        found = train_on_noise(runtime, seed)
        print({name: round(value, 4) for name, value in found.items()})
        assert found["trades_share"] <= 0.1 and found["loss_share"] <= 0.05
