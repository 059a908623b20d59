"""What a policy earned: metrics of a record of bars, in money and annualized.

Everything is computed from the bars' net change of equity. Sharpe and Sortino are always those of daily returns (by trading
date of the contract's calendar), so that they do not depend on the bar: a Sharpe ratio of 8-trade bars, annualized by the
square root of their number, would be a number without a meaning. A metric that the record cannot give is None and the
reason stands in `reasons`; never a number made up in its place.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bars import F64, I64
from .contract import ContractSpec
from .results import round_trips
from .sessions import trading_date

__all__ = ["Metrics", "daily_returns", "deflated_sharpe", "drawdown", "sharpe_ratio", "sortino_ratio", "summarize"]


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Metrics of one window and one policy. Money is in the contract's currency; shares are of 1.

    Attributes
    ----------
    net_pnl, gross_pnl, costs : float
        gross = net + costs; costs are fees, half-spread and slippage.
    sharpe, sortino : float or None
        Of daily returns on equity, target and riskless rate 0, annualized by sqrt(days_per_year).
    max_drawdown, max_drawdown_share : float
        Largest fall of equity below its peak, at the bars' closes: money, and as a share of the peak.
    calmar : float or None
        Compound annual return by max_drawdown_share.
    turnover : int
        Contracts bought and sold.
    trades : int
        Round trips from flat to flat; a flip ends one.
    hit_rate, average_trade : float or None
        Share of trades with a net gain, and their mean net PnL.
    exposure : float
        Share of the bars during which a position was held.
    trades_per_bar : float
    days, bars : int
    days_per_year : int
        252; 365 where the record holds weekend dates.
    clock : str
        How the ratios were made, for the output.
    alarms : tuple of str
        Signs of a policy that trades for the broker.
    reasons : dict
        Why a metric is None.
    """

    net_pnl: float
    gross_pnl: float
    costs: float
    sharpe: float | None
    sortino: float | None
    max_drawdown: float
    max_drawdown_share: float
    calmar: float | None
    turnover: int
    trades: int
    hit_rate: float | None
    average_trade: float | None
    exposure: float
    trades_per_bar: float
    days: int
    bars: int
    days_per_year: int
    clock: str
    alarms: tuple[str, ...]
    reasons: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def summarize(results: NDArray[Any], ts: I64, spec: ContractSpec, *, capital: float, clock: str) -> Metrics:
    """Metrics of a record that begins and ends flat.

    Parameters
    ----------
    results : bar_result (n,)
        Of an evaluation, or of `baselines.backtest`, in bar order.
    ts : int64 (n,)
        Time stamps of those bars.
    spec : ContractSpec
        Tick value, fee and calendar.
    capital : float
        Equity at the start.
    clock : str
        `Bars.clock`.

    Raises
    ------
    ValueError
        Lengths disagree, there is no bar, or a position is open at the end.
    """
    if len(results) != len(ts) or not len(ts):
        raise ValueError(f"{len(results)} results for {len(ts)} bars; give one result for each of at least one bar")
    net, costs = results["net"].astype(np.float64), float(results["cost"].sum())
    reasons: dict[str, str] = {}
    dates = trading_date(ts, spec.calendar)
    days_per_year = 365 if _trades_on_weekends(dates) else 252
    returns = daily_returns(net, dates, capital)
    days = int(np.unique(dates).size)

    sharpe, sortino = sharpe_ratio(returns, days_per_year), sortino_ratio(returns, days_per_year)
    if returns is None:
        reasons["sharpe"] = reasons["sortino"] = "equity fell to zero: daily returns have no meaning"
    elif days < 2:
        reasons["sharpe"] = reasons["sortino"] = f"{days} trading date; daily returns need at least 2"
    else:
        if sharpe is None:
            reasons["sharpe"] = "the daily returns do not vary"
        if sortino is None:
            reasons["sortino"] = "no daily return is negative"

    fall, share = drawdown(net, capital)
    equity = capital + float(net.sum())
    calmar = None
    if share <= 0:
        reasons["calmar"] = "no drawdown"
    elif equity <= 0 or share >= 1:
        reasons["calmar"] = "equity fell to zero"
    elif days < 2:
        reasons["calmar"] = f"{days} trading date; an annual return needs at least 2"
    else:
        calmar = math.expm1(math.log(equity / capital) * days_per_year / days) / share

    trips = round_trips(results, spec.tick_value, spec.fee)
    if not len(trips):
        reasons["hit_rate"] = reasons["average_trade"] = "no trade"
    during = results["position"].astype(np.int64) - results["exit_contracts"]
    gross = float(net.sum()) + costs
    alarms = []
    if costs > max(gross, 0.0) and len(trips):
        alarms.append(f"costs {costs:.2f} exceed gross PnL {gross:.2f}")
    if len(trips) > 0.2 * len(net):
        alarms.append(f"{len(trips) / len(net):.2f} trades a bar")
    return Metrics(
        net_pnl=float(net.sum()),
        gross_pnl=gross,
        costs=costs,
        sharpe=sharpe,
        sortino=sortino,
        max_drawdown=fall,
        max_drawdown_share=share,
        calmar=calmar,
        turnover=int(np.abs(results["contracts"]).sum() + np.abs(results["exit_contracts"]).sum()),
        trades=len(trips),
        hit_rate=float((trips["net"] > 0).mean()) if len(trips) else None,
        average_trade=float(trips["net"].mean()) if len(trips) else None,
        exposure=float((during != 0).mean()),
        trades_per_bar=len(trips) / len(net),
        days=days,
        bars=len(net),
        days_per_year=days_per_year,
        clock=f"daily returns of {days} trading dates, {days_per_year} a year; bars of {clock}",
        alarms=tuple(alarms),
        reasons=reasons,
    )


def daily_returns(net: F64, dates: NDArray[np.int64], capital: float) -> F64 | None:
    """(days,) change of equity of each trading date over the equity before it; None once equity is not positive."""
    _, first = np.unique(dates, return_index=True)
    gain = np.add.reduceat(net, first)
    before = capital + np.concatenate(([0.0], np.cumsum(gain)[:-1]))
    return None if (before <= 0).any() else gain / before


def sharpe_ratio(returns: F64 | None, periods_per_year: float) -> float | None:
    """sqrt(periods) * mean / sample standard deviation (Sharpe 1994); None below 2 returns or where they do not vary."""
    if returns is None or len(returns) < 2:
        return None
    deviation = float(np.std(returns, ddof=1))
    if deviation <= 1e-15 * max(1.0, float(np.abs(returns).max())) or (returns == returns[0]).all():
        return None
    return float(np.mean(returns)) / deviation * math.sqrt(periods_per_year)


def sortino_ratio(returns: F64 | None, periods_per_year: float) -> float | None:
    """sqrt(periods) * mean / root mean square of the negative returns, zeros counted (Sortino 1994); None without any."""
    if returns is None or len(returns) < 2:
        return None
    downside = math.sqrt(float(np.mean(np.minimum(returns, 0.0) ** 2)))
    return float(np.mean(returns)) / downside * math.sqrt(periods_per_year) if downside > 0 else None


def drawdown(net: F64, capital: float) -> tuple[float, float]:
    """Largest fall of equity below its running peak (the start counts), as money and as a share of the peak."""
    equity = capital + np.concatenate(([0.0], np.cumsum(net)))
    peak = np.maximum.accumulate(equity)
    return float((peak - equity).max()), float(((peak - equity) / peak).max())


def deflated_sharpe(returns: F64, trial_sharpes: F64) -> float:
    """Probability that the Sharpe ratio of `returns` is above what the best of the trials shows by luck alone.

    Bailey & Lopez de Prado 2014, "The Deflated Sharpe Ratio": the expected maximum of N trials without skill,
    sqrt(V) ((1 - g) z(1 - 1/N) + g z(1 - 1/(N e))), is the benchmark of the probabilistic Sharpe ratio, which allows for the
    length of the record, its skewness and its kurtosis.

    Parameters
    ----------
    returns : float (T,)
        Of the selected trial.
    trial_sharpes : float (N,)
        Sharpe ratios of all trials at the clock of `returns`, not annualized; N >= 2.
    """
    x = np.asarray(returns, np.float64)
    n = len(trial_sharpes)
    if n < 2 or len(x) < 3:
        raise ValueError(f"{n} trials and {len(x)} returns; give at least 2 trials and 3 returns")
    deviation = float(np.std(x, ddof=1))
    z = (x - x.mean()) / np.std(x)
    return _deflated(
        float(x.mean()) / deviation,
        len(x),
        float(np.mean(z**3)),
        float(np.mean(z**4)),
        float(np.var(trial_sharpes, ddof=1)),
        n,
    )


def _deflated(sharpe: float, length: int, skew: float, kurtosis: float, variance: float, trials: int) -> float:
    normal = statistics.NormalDist()
    euler = 0.5772156649015329
    luck = (1 - euler) * normal.inv_cdf(1 - 1 / trials) + euler * normal.inv_cdf(1 - 1 / (trials * math.e))
    benchmark = math.sqrt(variance) * luck
    spread = math.sqrt(1 - skew * sharpe + (kurtosis - 1) / 4 * sharpe**2)
    return normal.cdf((sharpe - benchmark) * math.sqrt(length - 1) / spread)


def _trades_on_weekends(dates: NDArray[np.int64]) -> bool:
    """Whether over a tenth of the dates are Saturdays or Sundays (a single make-up Saturday is not a market of 365 days)."""
    unique = np.unique(dates)
    return bool(np.mean((unique + 3) % 7 >= 5) > 0.1)  # 1970-01-01 was a Thursday
