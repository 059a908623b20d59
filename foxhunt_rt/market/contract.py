"""Contract specifications: what a price step is worth and what a trade costs.

Costs are data, not code: fees a contract (or share) and side, half the bid-ask spread and the slippage of a market order
at normal urgency, both in ticks. The numbers of the presets are round, public and on the careful side; every one can be
set (`--set market.fee=1.2`).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .bars import F64, BarsError

if TYPE_CHECKING:
    from foxhunt_rt.config import MarketConfig

__all__ = ["PRESETS", "ContractSpec", "contract_for", "futures_root", "infer_tick"]

_EXPIRY = re.compile(r"^([A-Z0-9]{1,3}?)([FGHJKMNQUVXZ])(\d{1,2}|\d{4})$")


@dataclasses.dataclass(frozen=True)
class ContractSpec:
    """One instrument.

    Attributes
    ----------
    symbol : str
        Root or ticker.
    tick : float
        Smallest price step, in price units.
    multiplier : float
        Currency of the account for a price step of 1.0 in one contract.
    fee : float
        Fees of exchange and broker, currency a contract (share) and side.
    half_spread_ticks, slippage_ticks : float
        Half the bid-ask spread, and the slippage of a market order at normal urgency, in ticks.
    session_gap_minutes : int
        A pause of at least this length ends a session.
    missing_weekdays : int
        A pause of at least this many weekdays (weekends do not count) ends a segment: missing data, not a holiday.
    calendar : str
        How trading dates are counted (`sessions.CALENDARS`): "cme", "us-equity", "moex", "fx", "utc".
    """

    symbol: str
    tick: float
    multiplier: float
    fee: float
    half_spread_ticks: float
    slippage_ticks: float
    session_gap_minutes: int
    missing_weekdays: int
    calendar: str

    @property
    def tick_value(self) -> float:
        """Currency of one tick in one contract."""
        return self.tick * self.multiplier

    @property
    def market_cost(self) -> float:
        """Cost of one contract and side by market order at normal urgency, in currency: fee, half spread and slippage."""
        return self.fee + (self.half_spread_ticks + self.slippage_ticks) * self.tick_value

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


# CME: 0.25 ticks of 12.50 USD, exchange 1.38 plus a broker's ~0.87 a side. The daily break was 45 minutes until 2015 and is
# 60 since; the halt of 15 minutes after the cash close stays inside a session, so 40 separates them. CME trades on nearly
# every weekday, so a pause of one weekday is missing data (or Christmas: then a segment more does no harm).
# MOEX: the tariff is a share of the turnover; 0.1 RUB is about 0.01 % at 1,000 RUB. Its thin days have pauses of up to 87
# minutes, its holidays up to 2 weekdays.
PRESETS: dict[str, ContractSpec] = {
    "ES": ContractSpec("ES", 0.25, 50.0, 2.25, 0.5, 0.25, 40, 1, "cme"),
    "6E": ContractSpec("6E", 0.00005, 125_000.0, 2.50, 0.5, 0.25, 40, 1, "cme"),
    "SPY": ContractSpec("SPY", 0.01, 1.0, 0.005, 0.5, 0.25, 180, 3, "us-equity"),
    "YNDX": ContractSpec("YNDX", 0.1, 1.0, 0.1, 0.5, 0.25, 180, 3, "moex"),
    "EURUSD": ContractSpec("EURUSD", 0.00001, 100_000.0, 2.50, 3.0, 1.0, 180, 2, "fx"),
    "SYNTHETIC": ContractSpec("SYNTHETIC", 0.25, 50.0, 2.25, 0.5, 0.25, 40, 1, "utc"),
}


def futures_root(symbol: str) -> str | None:
    """Root of a futures symbol with its expiry (`ESZ3` -> `ES`, `6EH24` -> `6E`); None for other symbols."""
    match = _EXPIRY.match(symbol)
    return match.group(1) if match else None


def preset_of(symbol: str) -> ContractSpec | None:
    """The preset of a ticker or of a futures symbol with or without its expiry; None where there is none."""
    return PRESETS.get(symbol) or PRESETS.get(futures_root(symbol) or "")


def infer_tick(prices: F64) -> float:
    """Largest of 1, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01 ... 1e-6 of which at least 99.9 % of the prices are multiples."""
    for decade in range(7):
        for step in (1.0, 0.5, 0.25):
            tick = step / 10**decade
            parts = prices / tick
            if np.mean(np.abs(parts - np.rint(parts)) < 1e-6 + 1e-10 * parts) >= 0.999:
                return float(f"{tick:.10g}")
    raise BarsError("no tick size fits the prices; name one: --set market.tick=0.01")


def contract_for(symbol: str, prices: F64, config: MarketConfig) -> tuple[ContractSpec, str]:
    """The contract of `config.contract` ("auto": by symbol), with the tick and costs that the configuration sets.

    Returns
    -------
    spec, line
        The line says what was chosen and from what, to be printed: nothing is assumed silently.

    Raises
    ------
    BarsError
        `config.contract` names no preset.
    """
    how = f"by symbol {symbol}"
    if config.contract == "auto":
        spec = preset_of(symbol)
        if spec is None:
            tick = config.tick if config.tick > 0 else infer_tick(prices)
            spec = ContractSpec(symbol or "unknown", tick, 1.0, 0.0, 0.5, 0.25, 180, 3, "utc")
            how = f"no preset for symbol {symbol or '(none)'}: tick from the prices, multiplier 1, no fee"
    else:
        spec = preset_of(config.contract)
        how = "by configuration"
        if spec is None:
            near = difflib.get_close_matches(config.contract, [*PRESETS, "auto"], n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose auto or one of {', '.join(PRESETS)}"
            raise BarsError(f"unknown contract {config.contract!r}; {hint}")
    # -1 in the configuration leaves the preset's value.
    changes = {
        name: getattr(config, name)
        for name in ("tick", "multiplier", "fee", "half_spread_ticks", "slippage_ticks")
        if getattr(config, name) >= 0
    }
    spec = dataclasses.replace(spec, **changes)
    line = (
        f"contract {spec.symbol} ({how}{'; set: ' + ', '.join(changes) if changes else ''}): tick {spec.tick:g}, "
        f"{spec.multiplier:g} a point, fee {spec.fee:g} a side, half spread {spec.half_spread_ticks:g} and slippage "
        f"{spec.slippage_ticks:g} ticks"
    )
    return spec, line
