"""Bars: the arrays that everything in the market layer reads, and the one function that makes them from a file.

    bars = load_bars("es.csv.gz", config.market)     read, choose the contract, cut sessions and segments, validate

A `Bars` holds plain NumPy arrays of equal length, in time order. Two integer columns cut it: `session` numbers the trading
sessions (positions are forced flat at the last bar of each), `segment` numbers the stretches of contiguous history. No
return, window or trade crosses a segment boundary: it stands where the contract rolled or where days are missing, and
the price step there is an artefact (in the ES test file +77 % into 2020, +2.8 % over two missing weeks).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from foxhunt_rt.config import MarketConfig

    from .contract import ContractSpec
    from .validate import ValidationReport

__all__ = ["Bars", "BarsError", "load_bars"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Mask = NDArray[np.bool_]


class BarsError(ValueError):
    """Bars that cannot be used: one line that names the file, the row (where there is one), the rule and the mend."""


@dataclasses.dataclass(frozen=True)
class Bars:
    """A price series in time order; every array has length n and is not to be written to.

    Attributes
    ----------
    ts : int64 (n,)
        Start of the bar, nanoseconds since 1970-01-01 UTC. Strictly increasing for time bars, non-decreasing for trade bars.
    open, high, low, close : float64 (n,)
        Prices, in the contract's unit.
    volume : float64 (n,)
        Contracts or shares; zeros throughout where the source has none.
    session : int32 (n,)
        Number of the trading session, from 0.
    segment : int32 (n,)
        Number of the contiguous stretch, from 0; a segment boundary is a session boundary as well.
    mark : uint16 (n,)
        Bits of the validation rules that the bar breaks (`validate.RULES`); all 0 unless the policy is `mark`.
    symbol : str
        The instrument, or the root of the futures chain (`ES`).
    clock : str
        What one bar is, as printed beside every result: "1 minute", "8 trades".
    source : str
        File name or description.
    contracts : tuple of str
        For a chain of expiries: the expiries in order of use; else empty.
    notes : tuple of str
        What loading decided or found, one line each, to be printed.
    """

    ts: I64
    open: F64
    high: F64
    low: F64
    close: F64
    volume: F64
    session: I32
    segment: I32
    mark: NDArray[np.uint16]
    symbol: str
    clock: str
    source: str
    contracts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in _COLUMNS:
            array = getattr(self, field)
            if array.shape != (len(self.ts),):
                raise BarsError(
                    f"{self.source}: {field} has shape {array.shape}, ts has {len(self.ts)} bars; give arrays of equal length"
                )
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def session_end(self) -> Mask:
        """(n,) bool: the last bar of its session, where positions are forced flat."""
        return _ends(self.session)

    @property
    def segment_end(self) -> Mask:
        """(n,) bool: the last bar of its segment."""
        return _ends(self.segment)

    def slice(self, start: int, stop: int) -> Bars:
        """Bars `start` to `stop` (exclusive), as views; session and segment numbers are kept."""
        return dataclasses.replace(self, **{name: getattr(self, name)[start:stop] for name in _COLUMNS})

    def take(self, keep: Mask | I64) -> Bars:
        """The bars that `keep` (mask or indices) selects, copied."""
        return dataclasses.replace(self, **{name: getattr(self, name)[keep] for name in _COLUMNS})

    def describe(self) -> dict[str, Any]:
        """What the bars are, as plain values for JSON."""
        return {
            "source": self.source,
            "symbol": self.symbol,
            "clock": self.clock,
            "bars": len(self),
            "first": _iso(self.ts[0]) if len(self) else None,
            "last": _iso(self.ts[-1]) if len(self) else None,
            "sessions": int(np.unique(self.session).size),
            "segments": int(np.unique(self.segment).size),
            "contracts": list(self.contracts),
            "notes": list(self.notes),
        }


_COLUMNS = ("ts", "open", "high", "low", "close", "volume", "session", "segment", "mark")


def _ends(number: I32) -> Mask:
    ends = np.ones(len(number), np.bool_)
    ends[:-1] = number[1:] != number[:-1]
    return ends


def _iso(ts: np.int64) -> str:
    return f"{np.datetime64(int(ts), 'ns').astype('datetime64[ms]')}Z"


def bar_clock(ts: I64) -> str:
    """The clock of time bars, from the commonest step between them: "1 minute", "5 minutes", "1 second", "1 hour", "1 day"."""
    steps = np.diff(ts)
    steps = steps[steps > 0]
    if not steps.size:
        return "unknown clock"
    values, counts = np.unique(steps, return_counts=True)
    step = int(values[np.argmax(counts)])
    for unit, name in (
        (86_400_000_000_000, "day"),
        (3_600_000_000_000, "hour"),
        (60_000_000_000, "minute"),
        (1_000_000_000, "second"),
    ):
        if step >= unit and step % unit == 0:
            return f"{step // unit} {name}{'' if step == unit else 's'}"
    return f"{step / 1e9:g} seconds"


def is_time_clock(clock: str) -> bool:
    """Whether bars of this clock start at times that may not repeat (trade bars may: many trades share a millisecond)."""
    return "trade" not in clock


def load_bars(
    path: str | Path, config: MarketConfig, *, spec: ContractSpec | None = None
) -> tuple[Bars, ContractSpec, ValidationReport]:
    """Reads a CSV, Parquet or DBN file of bars and makes them ready for features and the environment.

    In order: read the columns; validate under `config.policy`; for a file with several expiries choose the front month by
    volume and roll (`roll.front_month`); find the contract; cut sessions and segments. The file is only read; on an error
    nothing is returned and nothing is written.

    Parameters
    ----------
    path : path
        `.csv`, `.csv.gz`, `.parquet`, `.dbn` or `.dbn.zst`.
    config : MarketConfig
        `symbol`, `timezone`, `policy`, `strict`, `adjust`, `contract` and the costs are used.
    spec : ContractSpec, optional
        Overrides the contract that `config` would choose.

    Returns
    -------
    bars, spec, report
        The report counts every problem by rule with its first time stamps, also those that the policy let pass.

    Raises
    ------
    BarsError
        One line: file, row, rule, mend.
    """
    from .contract import contract_for
    from .read import read_table
    from .roll import choose_symbol, outrights
    from .sessions import cut_sessions
    from .validate import ValidationReport, check_rows, check_series

    raw = outrights(read_table(path, timezone=config.timezone), symbol=config.symbol)
    report = ValidationReport(raw.source, len(raw), config.strict)
    raw = check_rows(raw, config.policy, report)
    raw = check_series(choose_symbol(raw, adjust=config.adjust), config.policy, report)
    if report.dropped:
        raw = raw.with_note(f"{report.dropped} faulty rows dropped: {', '.join(p.rule for p in report.faults)}")
    if spec is None:
        spec, line = contract_for(raw.symbol, raw.close, config)
        raw = raw.with_note(line)
    bars = cut_sessions(raw, spec)
    if len(bars) < 2:
        raise BarsError(f"{bars.source}: {len(bars)} bar is left to trade; give a file with more bars")
    report.add_gaps(bars)
    return bars, spec, report
