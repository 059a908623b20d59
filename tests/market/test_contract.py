"""Contracts: presets by symbol, by configuration, with set costs; the tick from prices; nothing assumed silently."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market.bars import BarsError
from foxhunt_rt.market.contract import PRESETS, contract_for, futures_root, infer_tick
from foxhunt_rt.market.sessions import CALENDARS

PRICES = np.array([100.25, 101.5, 99.75])


def chosen(*assignments: str) -> MarketConfig:
    return Config().with_set(assignments).market


def test_es_is_what_the_exchange_says() -> None:
    es = PRESETS["ES"]
    assert (es.tick, es.multiplier, es.tick_value) == (0.25, 50.0, 12.5)
    assert es.market_cost == pytest.approx(2.25 + 0.75 * 12.5)
    assert PRESETS["6E"].tick_value == pytest.approx(6.25)
    assert PRESETS["SPY"].tick_value == pytest.approx(0.01)
    assert PRESETS["YNDX"].tick_value == pytest.approx(0.1)
    assert all(spec.calendar in CALENDARS for spec in PRESETS.values())
    assert all(spec.symbol == name for name, spec in PRESETS.items())


@pytest.mark.parametrize(
    ("symbol", "root"),
    [("ESZ3", "ES"), ("6EH4", "6E"), ("ESH24", "ES"), ("ESM2024", "ES"), ("SPY", None), ("YNDX", None), ("EURUSD", None),
     ("", None), ("ES", None)],
)  # fmt: skip
def test_futures_root(symbol: str, root: str | None) -> None:
    assert futures_root(symbol) == root


@pytest.mark.parametrize("symbol", ["ES", "ESZ3", "6EH4", "SPY", "YNDX"])
def test_by_symbol(symbol: str) -> None:
    spec, line = contract_for(symbol, PRICES, chosen())
    assert spec == PRESETS[futures_root(symbol) or symbol]
    assert f"by symbol {symbol}" in line


def test_by_configuration_with_costs() -> None:
    spec, line = contract_for("YNDX", PRICES, chosen("market.contract=ES", "market.fee=0", "market.slippage_ticks=2"))
    assert (spec.symbol, spec.fee, spec.slippage_ticks, spec.half_spread_ticks) == ("ES", 0.0, 2.0, 0.5)
    assert "by configuration; set: fee, slippage_ticks" in line


def test_unknown_preset_names_the_near_one() -> None:
    with pytest.raises(BarsError, match="unknown contract 'SPX'; did you mean SPY"):
        contract_for("ES", PRICES, chosen("market.contract=SPX"))
    with pytest.raises(BarsError, match="choose auto or one of ES"):
        contract_for("ES", PRICES, chosen("market.contract=zzzz"))


def test_unknown_symbol_says_what_it_assumes() -> None:
    spec, line = contract_for("ACME", PRICES, chosen())
    assert (spec.tick, spec.multiplier, spec.fee) == (0.25, 1.0, 0.0)
    assert "no preset for symbol ACME: tick from the prices, multiplier 1, no fee" in line
    assert contract_for("", PRICES, chosen("market.tick=0.05"))[0].tick == 0.05


@pytest.mark.parametrize(
    ("tick", "seed"), [(1.0, 0), (0.5, 1), (0.25, 2), (0.1, 3), (0.05, 4), (0.01, 5), (0.00005, 6), (0.00001, 7)]
)
def test_infer_tick(tick: float, seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    prices = rng.integers(round(50 / tick), round(150 / tick), 5000) * tick
    assert infer_tick(prices) == pytest.approx(tick, rel=1e-9)


def test_no_tick_fits() -> None:
    with pytest.raises(BarsError, match=r"market\.tick"):
        infer_tick(np.random.Generator(np.random.PCG64(0)).random(1000) + 1)
