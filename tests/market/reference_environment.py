"""An independent trading environment: float64, one environment, bar by bar, written from the specification's text
(docs/environment.md) and not from the kernels. Prices are in ticks, so that comparisons of prices on the tick grid
are exact.

    "A decision after the close of bar t executes in bar t+1: a market order at its open +- half-spread +- slippage,
    limit and stop orders against its range; reward is the change of equity to the close of t+1, net; forced flat at
    the session's last close, with costs. A limit order fills only when the bar trades through it."
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

DIRECTIONS = {"short": -1, "flat": 0, "long": 1}
ACTIONS = list(
    itertools.product(("short", "flat", "long"), (0.25, 0.5, 0.75, 1.0), ("market", "limit", "stop"), (0, 1, 2))
)


@dataclasses.dataclass
class Costs:
    tick_value: float = 12.5
    fee: float = 2.25
    half_spread: float = 0.5
    slippage: float = 0.25
    slippage_range: float = 0.02
    urgency: tuple[float, float, float] = (0.5, 1.0, 2.0)
    stop_offset: float = 1.0
    limit: int = 4
    drawdown_penalty: float = 0.0
    pnl_scale: float = 500.0
    time_scale: float = 30.0


@dataclasses.dataclass
class Row:
    """What one step put out."""

    bar: int
    next_bar: int
    portfolio: list[float]
    next_portfolio: list[float]
    reward: float
    terminated: bool
    truncated: bool
    net: float
    cost: float
    fills: list[tuple[str, int, float]]
    position: int


class ReferenceEnvironment:
    """Walks bars [start, end) of a list of (open, high, low, close); `session` lists the bars' session numbers."""

    def __init__(self, bars: list[Any], session: list[int], costs: Costs, start: int, end: int, flatten: bool) -> None:
        self.bars, self.session, self.costs = bars, session, costs  # shared, not copied
        self.end, self.flatten, self.t = end, flatten, start
        self.done = False
        self._new_episode()
        self._seek()

    def _new_episode(self) -> None:
        self.lots: list[list[float]] = []  # [signed contracts, fill price] of what is held now
        self.realized_ticks = 0.0
        self.fees = 0.0
        self.equity = 0.0
        self.peak = 0.0
        self.held_bars = 0

    def _seek(self) -> None:
        """To the next bar that has a successor in its session within the walk."""
        while self.t + 1 < self.end and self.session[self.t] != self.session[self.t + 1]:
            self.t += 1
        self.done = self.t + 1 >= self.end

    @property
    def position(self) -> int:
        return int(sum(lot[0] for lot in self.lots))

    def portfolio(self) -> list[float]:
        c = self.costs
        close = self.bars[self.t][3]
        unrealized = sum(q * (close - p) for q, p in self.lots) * c.tick_value

        def bounded(x: float) -> float:
            return max(-5.0, min(5.0, x))

        return [
            self.position / c.limit,
            bounded(unrealized / c.pnl_scale),
            self.held_bars / (self.held_bars + c.time_scale),
            bounded((self.peak - self.equity) / c.pnl_scale),
        ]

    def _trade(self, contracts: int, price: float) -> None:
        """Average-cost bookkeeping: adding averages the price, reducing realizes against it, a flip does both."""
        self.fees += self.costs.fee * abs(contracts)
        position = self.position
        entry = self.lots[0][1] if self.lots else 0.0
        if position * contracts < 0:
            closed = min(abs(contracts), abs(position)) * (1 if contracts > 0 else -1)
            self.realized_ticks += -closed * (price - entry)
            left, fresh = position + closed, contracts - closed
            self.lots = [[left, entry]] if left else []
            if fresh:
                self.lots = [[fresh, price]]
            if not left:
                self.held_bars = 0
        elif position == 0:
            self.lots = [[contracts, price]]
            self.held_bars = 0
        else:
            total = position + contracts
            self.lots = [[total, (entry * position + price * contracts) / total]]

    def step(self, action: int) -> Row:
        """One decision: an action by number."""
        assert not self.done
        c, t = self.costs, self.t
        direction, share, order, urgency = ACTIONS[action]
        before, state = self.equity, self.portfolio()
        drawdown_before = self.peak - self.equity
        open_, high, low, close = self.bars[t + 1]
        last = self.bars[t][3]
        fills: list[tuple[str, int, float]] = []
        cost = 0.0

        contracts = max(1, math.floor(share * c.limit + 0.5))
        want = DIRECTIONS[direction] * contracts - self.position
        slip = [f * (c.slippage + c.slippage_range * (high - low)) for f in c.urgency]
        price: float | None = None
        friction = 0.0
        if want > 0:
            if order == "market":
                friction = c.half_spread + slip[urgency]
                price = open_ + friction
            elif order == "limit":
                bid = last - c.half_spread
                if low < bid:
                    price = bid
                    if open_ + c.half_spread < bid:
                        price, friction = open_ + c.half_spread, c.half_spread
            elif high >= last + c.stop_offset:
                friction = c.half_spread + slip[urgency]
                price = max(open_, last + c.stop_offset) + friction
        elif want < 0:
            if order == "market":
                friction = c.half_spread + slip[urgency]
                price = open_ - friction
            elif order == "limit":
                ask = last + c.half_spread
                if high > ask:
                    price = ask
                    if open_ - c.half_spread > ask:
                        price, friction = open_ - c.half_spread, c.half_spread
            elif low <= last - c.stop_offset:
                friction = c.half_spread + slip[urgency]
                price = min(open_, last - c.stop_offset) - friction
        if price is not None:
            self._trade(want, price)
            cost += abs(want) * (friction * c.tick_value + c.fee)
            fills.append(("order", want, price))

        session_over = t + 2 >= len(self.session) or self.session[t + 2] != self.session[t + 1]
        data_over = t + 2 >= self.end
        terminated = session_over or (data_over and self.flatten)
        if terminated and self.position:
            leave = -self.position
            friction = c.half_spread + slip[2]
            price = close + friction if leave > 0 else close - friction
            self._trade(leave, price)
            cost += abs(leave) * (friction * c.tick_value + c.fee)
            fills.append(("exit", leave, price))

        if self.position:
            self.held_bars += 1
        self.equity = c.tick_value * (self.realized_ticks + sum(q * (close - p) for q, p in self.lots)) - self.fees
        self.peak = max(self.peak, self.equity)
        net = self.equity - before
        reward = net - c.drawdown_penalty * max(0.0, (self.peak - self.equity) - drawdown_before)
        self.t = t + 1
        row = Row(
            t, t + 1, state, self.portfolio(), reward, terminated, data_over and not terminated, net, cost, fills,
            self.position,
        )  # fmt: skip
        if session_over:
            self._new_episode()
            self.t = t + 2
            self._seek()
        else:
            self.done = data_over
        return row
