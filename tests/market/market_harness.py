"""Runs the device environment for tests and keeps everything it put out; markets to run it on."""

from __future__ import annotations

import csv
import dataclasses
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foxhunt_rt.market.environment import BarResults, MarketEnvironment, MarketTables
from foxhunt_rt.market.execution import ExecutionModel
from foxhunt_rt.market.walks import Walks, session_ends
from foxhunt_rt.replay import Staging

from .reference_environment import Costs, ReferenceEnvironment, Row

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
if not SHARED.exists():
    SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def model(costs: Costs, tick: float = 1.0) -> ExecutionModel:
    return ExecutionModel(
        tick=tick, tick_value=costs.tick_value, fee=costs.fee, half_spread=costs.half_spread, slippage=costs.slippage,
        slippage_range=costs.slippage_range, urgency=costs.urgency, stop_offset=costs.stop_offset,
        position_limit=costs.limit, drawdown_penalty=costs.drawdown_penalty, pnl_scale=costs.pnl_scale,
        time_scale=costs.time_scale,
    )  # fmt: skip


@dataclasses.dataclass
class Market:
    """Prices in ticks (n, 4), session numbers (n,), features (n, F)."""

    ohlc: NDArray[np.float64]
    session: NDArray[np.int64]
    features: NDArray[np.float32]
    tick: float = 1.0  # the price of a tick; ohlc * tick goes to the device

    @property
    def ends(self) -> NDArray[np.int32]:
        return session_ends(self.session)


def features(n: int, count: int, seed: int = 7) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, count)).astype(np.float32)


def random_market(seed: int, n: int = 600, count: int = 5, tick: float = 1.0) -> Market:
    """A random walk on the tick grid with gaps, ties, flat bars, and sessions of 1 to 60 bars."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1, 1, 2, 3, 7, 20, 60], size=n)
    session = np.repeat(np.arange(n), lengths)[:n]
    close = 5000 + np.cumsum(rng.integers(-3, 4, n))
    open_ = np.concatenate([[5000], close[:-1]]) + rng.integers(-3, 4, n) * (rng.random(n) < 0.4)
    high = np.maximum(open_, close) + rng.integers(0, 4, n) * (rng.random(n) < 0.7)
    low = np.minimum(open_, close) - rng.integers(0, 4, n) * (rng.random(n) < 0.7)
    return Market(np.stack([open_, high, low, close], 1).astype(np.float64), session, features(n, count), tick)


def shared_market(file: str, tick: float, symbol: str | None, gap_minutes: int, count: int = 5) -> Market:
    """Real bars. Skips when, and only when, the file is absent."""
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"{file} is not here")
    with gzip.open(path, "rt", encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if symbol is None or row["symbol"] == symbol]
    ohlc = np.array([[float(row[name]) for name in ("open", "high", "low", "close")] for row in rows])
    time = np.array([row["ts_event"].rstrip("Z") for row in rows], "datetime64[ns]")
    breaks = np.diff(time) >= np.timedelta64(gap_minutes, "m")
    session = np.concatenate([[0], np.cumsum(breaks)])
    return Market(np.rint(ohlc / tick), session, features(len(rows), count), tick)


ROW = ("feature_row", "next_feature_row", "portfolio", "next_portfolio", "action", "reward", "ended")


def stage(rt: Any, environments: int) -> Staging:
    return Staging.allocate(rt, environments, state_dim=0, portfolio_dim=4)


@dataclasses.dataclass
class Rollout:
    """(steps, E) arrays of the staging rows, (steps + 1, E, Sp) observations, `bar_result` (n,), `env_state` (E,)."""

    rows: dict[str, NDArray[Any]]
    states: NDArray[np.float32]
    results: NDArray[Any]
    env: NDArray[Any]


def make(rt: Any, market: Market, costs: Costs, environments: int) -> MarketEnvironment:
    tables = MarketTables(rt, market.ohlc * market.tick, market.ends, market.features, market.tick)
    return MarketEnvironment(rt, tables, model(costs, market.tick), environments)


def rollout(
    rt: Any, market: Market, costs: Costs, walks: Walks, actions: NDArray[np.int32], environments: int | None = None
) -> Rollout:
    """`actions` (steps, E), launched one by one."""
    count = environments or len(walks)
    env = make(rt, market, costs, count)
    steps, user = len(actions), rt.ungraphed("tests.environment")
    action = rt.array(actions.reshape(-1), "actions")
    staging = stage(rt, steps * count)
    state = rt.zeros(((steps + 1) * count, env.tables.padded_width), np.float32, "states")
    state.fill(np.float32(np.nan))
    results = BarResults(rt, 0, len(market.ohlc))
    env.reset(walks)
    env.record_observe(user, state[:count])
    for k in range(steps):
        at = slice(k * count, (k + 1) * count)
        row = dataclasses.replace(staging, environments=count, **{name: getattr(staging, name)[at] for name in ROW})
        env.record_step(user, action[at], row, state[(k + 1) * count : (k + 2) * count], results)
    rows = {name: getattr(staging, name).to_numpy() for name in ROW}
    out = Rollout(
        {name: x.reshape(steps, count, *x.shape[1:]) for name, x in rows.items()},
        state.to_numpy().reshape(steps + 1, count, -1),
        results.to_numpy(),
        env.state.to_numpy(),
    )
    for buffer in (action, state, results.buffer, staging.words):
        buffer.free()
    return out


def reference(market: Market, costs: Costs, walks: Walks, actions: NDArray[np.int32]) -> list[list[Row]]:
    """The reference's rows, one list an environment."""
    bars, session = [tuple(map(float, bar)) for bar in market.ohlc], [int(s) for s in market.session]
    out = []
    for e in range(len(walks)):
        env = ReferenceEnvironment(
            bars, session, costs, int(walks.start[e]), int(walks.end[e]), bool(walks.flatten[e])
        )  # fmt: skip
        rows: list[Row] = []
        for k in range(len(actions)):
            if env.done:
                break
            rows.append(env.step(int(actions[k, e])))
        out.append(rows)
    return out
