"""The NumPy backtest and the environment's kernel, which share no code, agree on market orders bar by bar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.market.actions import encode_actions
from foxhunt_rt.market.bars import Bars, load_bars
from foxhunt_rt.market.baselines import RESULT, backtest
from foxhunt_rt.market.contract import ContractSpec
from foxhunt_rt.market.environment import BarResults, MarketEnvironment, MarketTables
from foxhunt_rt.market.execution import ExecutionModel
from foxhunt_rt.market.metrics import summarize
from foxhunt_rt.market.synthetic import simulate
from foxhunt_rt.market.walks import session_ends, session_walks
from foxhunt_rt.replay import Staging

CONFIG = Config().market


def environment_record(
    rt: Any, bars: Bars, spec: ContractSpec, direction: np.ndarray, quarters: np.ndarray
) -> np.ndarray:
    """The record of market orders of normal urgency, one walk a session, all sessions side by side."""
    ends = session_ends(bars.session)
    ohlc = np.stack([bars.open, bars.high, bars.low, bars.close], axis=1)
    tables = MarketTables(rt, ohlc, ends, np.zeros((len(bars), 1), np.float32), spec.tick)
    walks = session_walks(ends, 0, len(bars))
    env = MarketEnvironment(rt, tables, ExecutionModel.from_config(CONFIG, spec, 10.0), len(walks))
    user = rt.ungraphed("tests.baselines")
    staging = Staging.allocate(rt, len(walks), state_dim=0, portfolio_dim=4)
    state = rt.zeros((len(walks), tables.padded_width), np.float32, "state")
    results = BarResults(rt, 0, len(bars))
    env.reset(walks)
    for step in range(walks.longest):
        at = np.minimum(walks.start + step, len(bars) - 1)
        parts = np.stack([direction[at] + 1, quarters[at] - 1, np.zeros(len(at)), np.ones(len(at))], axis=1)
        action = rt.array(encode_actions(parts.astype(np.int64)), "action")
        env.record_step(user, action, staging, state, results)
        rt.synchronize()
        action.free()
    record = results.to_numpy()
    env.check()
    return record


@pytest.mark.parametrize("source", ["simulated", "real"])
def test_market_orders_agree(runtime: Any, data_file: Callable[[str], Path], source: str) -> None:
    if source == "simulated":
        bars = simulate(400, 3).bars
        session = (np.arange(400) // 57).astype(np.int32)
        bars = Bars(**{**bars.__dict__, "session": session})
        spec = ContractSpec("SYNTHETIC", 0.25, 50.0, 2.25, 0.5, 0.25, 40, 1, "utc")
    else:
        bars, spec, _ = load_bars(data_file("yndx_moex_stock_1m_2016_traded-bars.csv.gz"), CONFIG)
        bars = bars.slice(0, int(np.searchsorted(bars.session, 4)))
    rng = np.random.Generator(np.random.PCG64(8))
    direction, quarters = rng.integers(-1, 2, len(bars)), rng.integers(1, 5, len(bars))
    size = (CONFIG.position_limit * quarters + 2) // 4
    want = backtest(bars, direction * size, spec, CONFIG)
    got = environment_record(runtime, bars, spec, direction, quarters)
    for name in RESULT.names or ():
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-6, err_msg=name)
    a = summarize(got, bars.ts, spec, capital=1e5, clock=bars.clock)
    b = summarize(want, bars.ts, spec, capital=1e5, clock=bars.clock)
    assert a.trades == b.trades > 20
    assert a.net_pnl == pytest.approx(b.net_pnl)
    assert a.costs == pytest.approx(b.costs)
