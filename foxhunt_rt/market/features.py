"""The feature table: what the learner sees of the market at the close of bar t, from bars <= t only.

Every column is either *directional* (odd: it changes sign when the market is mirrored, p -> c^2 / p) or not (even: it stays).
Mirror augmentation negates the directional columns, so they are built from log prices, in which the mirror is exact, and
their normalizer scales without shifting: (x - mean) / std of a directional column would not be odd.

Columns, with r the log return, all windows cut at the start of the segment:

    ret_L            log return over L bars                                     directional
    body             log close / open                                           directional
    close_location   (2 log c - log h - log l) / (log h - log l), 0 when flat   directional, [-1, 1]
    rsi              (gain - loss) / (gain + loss), exponential, 0 when flat    directional, [-1, 1]   Wilder 1978
    macd             (EMA_fast - EMA_slow of log close) / volatility            directional            Appel 1979
    vwap             (log c - session VWAP in logs) / (volatility sqrt(bars))   directional
    channel_W        2 (log c - lowest) / (highest - lowest) - 1, 0 when flat   directional, [-1, 1]   distance to extremes
    vol_W            log(sqrt(mean r^2) + 1e-5)
    range            log(log h / l + 1e-5) - its level over the longest window
    volume_z         z-score of log(1 + volume); 0 where there is no volume
    pace             log(1 + seconds since the bar before), at most a day; 0 at a segment's start
    day_sin, day_cos, week_sin, week_cos          exchange wall clock
    session_phase    time since the session opened, as a share of the median length of the sessions before, at most 1.5
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .bars import F64, I64, Bars, BarsError, Mask
from .contract import ContractSpec
from .rolling import Stretches, ema, rolling_max, rolling_mean, rolling_min
from .sessions import DAY, HOUR, local_time

if TYPE_CHECKING:
    from foxhunt_rt.config import FeatureConfig

__all__ = ["FeatureTable", "Normalizer", "build_features"]

#: Floor of volatilities and ranges in log price: 0.1 basis points, a third of what one ES tick in 16 bars makes. With it a
#: flat window gives finite values that lie near, not far from, those of a quiet one.
FLOOR = 1e-5
_SESSIONS = 20  # sessions before, of which session_phase takes the median length


@dataclasses.dataclass(frozen=True)
class FeatureTable:
    """Features of every bar.

    Attributes
    ----------
    values : float32 (n, F)
        Not normalized; finite everywhere. C order.
    names : tuple of str (F)
    directional : bool (F,)
        Columns that change sign in the mirrored market.
    valid : bool (n,)
        False while the windows fill at the start of a segment, and where the bar carries a validation mark. The values are
        finite there too; learning and trading should start on valid bars.
    horizon : int
        Bars that a value may depend on, its own included; exact, for the embargo between folds. The session columns look
        back to the open of the session and, for its length, to the sessions before; they hold no return.
    """

    values: NDArray[np.float32]
    names: tuple[str, ...]
    directional: Mask
    valid: Mask
    horizon: int

    @property
    def width(self) -> int:
        """F, the number of columns."""
        return len(self.names)


def build_features(bars: Bars, config: FeatureConfig, spec: ContractSpec) -> FeatureTable:
    """The feature table of `bars`. Computed in float64, stored in float32; 1 to 2 s a million bars."""
    n = len(bars)
    segment, session = Stretches.of(bars.segment), Stretches.of(bars.session)
    log_open, log_high, log_low, log_close = (np.log(x) for x in (bars.open, bars.high, bars.low, bars.close))
    ret = np.zeros(n)
    ret[1:] = np.diff(log_close)
    ret[segment.age == 0] = 0.0  # the step into a segment is a roll or a hole
    columns: list[tuple[str, bool, NDArray[np.float32]]] = []
    horizon = 1

    def add(name: str, directional: bool, values: F64, memory: int) -> None:
        nonlocal horizon
        columns.append((name, directional, values.astype(np.float32)))
        horizon = max(horizon, memory)

    for lag in config.return_lags:
        add(f"ret_{lag}", True, log_close - log_close[np.arange(n) - np.minimum(segment.age, lag)], lag + 1)
    add("body", True, log_close - log_open, 1)
    span = log_high - log_low
    add("close_location", True, _ratio(2.0 * log_close - log_high - log_low, span), 1)

    gain, memory = ema(np.maximum(ret, 0.0), 2 * config.rsi_period - 1, segment)  # Wilder's 1/period as a span
    loss, _ = ema(np.maximum(-ret, 0.0), 2 * config.rsi_period - 1, segment)
    add("rsi", True, _ratio(gain - loss, gain + loss), memory + 1)

    square = ret * ret
    volatility = {w: np.sqrt(np.maximum(rolling_mean(square, w, segment), 0.0)) for w in config.volatility_windows}
    longest = max(config.volatility_windows)
    scale = volatility[longest] + FLOOR
    fast, _ = ema(log_close - log_close[0], config.macd_fast, segment)
    slow, memory = ema(log_close - log_close[0], config.macd_slow, segment)
    add("macd", True, (fast - slow) / scale, max(memory, longest + 1))
    spread = scale * np.sqrt(session.age + 1.0)  # of a random walk since the session opened
    add("vwap", True, _vwap(bars, log_high, log_low, log_close, session) / spread, longest + 1)
    for window in config.extreme_windows:
        top, bottom = rolling_max(log_high, window, segment), rolling_min(log_low, window, segment)
        add(f"channel_{window}", True, _ratio(2.0 * log_close - top - bottom, top - bottom), window)

    for window in config.volatility_windows:
        add(f"vol_{window}", False, np.log(volatility[window] + FLOOR), window + 1)
    level = np.log(np.maximum(span, 0.0) + FLOOR)
    add("range", False, level - rolling_mean(level, longest, segment), longest)
    add("volume_z", False, _zscore(bars.volume, config.volume_window, segment), config.volume_window)
    add("pace", False, _pace(bars.ts, segment.age), 2)
    for name, wave in _clock(bars.ts, spec.calendar):
        add(name, False, wave, 1)
    add("session_phase", False, _session_phase(bars.ts, session), 1)

    for name, _, column in columns:
        if not np.isfinite(column).all():
            i = int(np.argmin(np.isfinite(column)))
            raise BarsError(
                f"{bars.source}: feature {name} is not finite at bar {i}; check the prices there (policy=drop)"
            )
    values = _interleave([column for _, _, column in columns])
    return FeatureTable(
        values=values,
        names=tuple(name for name, _, _ in columns),
        directional=np.array([directional for _, directional, _ in columns]),
        valid=(segment.age >= horizon - 1) & (bars.mark == 0),
        horizon=horizon,
    )


def _interleave(columns: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(n, F) in C order from F columns, by blocks that stay in the cache (np.stack strides through memory F times)."""
    n = len(columns[0])
    table = np.empty((n, len(columns)), np.float32)
    for lo in range(0, n, 4096):
        table[lo : lo + 4096] = np.array([column[lo : lo + 4096] for column in columns]).T
    return table


def _ratio(numerator: F64, denominator: F64) -> F64:
    """Quotient in [-1, 1]; 0 where the denominator is below the rounding of log prices (a flat bar or window)."""
    flat = denominator < 1e-12
    return np.clip(np.where(flat, 0.0, numerator / np.where(flat, 1.0, denominator)), -1.0, 1.0)


def _vwap(bars: Bars, log_high: F64, log_low: F64, log_close: F64, session: Stretches) -> F64:
    """Log close minus the session's volume-weighted mean of the typical log price; the plain mean while volume is 0."""
    typical = (log_high + log_low + log_close) / 3.0
    result = np.empty(len(bars))
    for lo, hi in session.bounds:  # a loop over sessions: the sums start afresh, so nothing cancels
        x = typical[lo:hi] - typical[lo]
        volume = np.cumsum(bars.volume[lo:hi])
        weighted = np.cumsum(bars.volume[lo:hi] * x)
        plain = np.cumsum(x) / np.arange(1, hi - lo + 1)
        mean = np.where(volume > 0, weighted / np.where(volume > 0, volume, 1.0), plain)
        result[lo:hi] = log_close[lo:hi] - typical[lo] - mean
    return result


def _zscore(volume: F64, window: int, segment: Stretches) -> F64:
    """Z-score of log(1 + volume) over the window, deviation at least 0.1, within +-10."""
    x = np.log1p(volume) - 5.0  # centred, so that the sums of squares do not cancel
    mean = rolling_mean(x, window, segment)
    variance = np.maximum(rolling_mean(x * x, window, segment) - mean * mean, 0.0)
    return np.clip((x - mean) / np.maximum(np.sqrt(variance), 0.1), -10.0, 10.0)


def _pace(ts: I64, age: I64) -> F64:
    seconds = np.zeros(len(ts))
    seconds[1:] = np.diff(ts) / 1e9
    return np.log1p(np.where(age == 0, 0.0, np.minimum(seconds, 86_400.0)))


def _clock(ts: I64, calendar: str) -> list[tuple[str, F64]]:
    local = local_time(ts, calendar)
    day = 2.0 * np.pi * ((local % DAY) / DAY)
    week = (
        2.0 * np.pi * (((local + 3 * DAY) % (7 * DAY)) / (7 * DAY))
    )  # 1970-01-01 was a Thursday; weeks start on Monday
    return [("day_sin", np.sin(day)), ("day_cos", np.cos(day)), ("week_sin", np.sin(week)), ("week_cos", np.cos(week))]


def _session_phase(ts: I64, session: Stretches) -> F64:
    """Elapsed share of the session's expected length; before any session has ended 8 hours are expected."""
    first, last = np.array([lo for lo, _ in session.bounds]), np.array([hi - 1 for _, hi in session.bounds])
    length = (ts[last] - ts[first]).astype(np.float64)
    expected = np.empty(len(first))
    for k in range(len(first)):
        past = length[max(0, k - _SESSIONS) : k]
        expected[k] = max(float(np.median(past)), 60e9) if len(past) else 8.0 * HOUR
    elapsed = (ts - ts[session.first]) / np.repeat(expected, last - first + 1)
    return np.minimum(elapsed, 1.5)


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """y = clip((x - center) / scale, -clip, clip), by column, fitted on the rows of the training window only.

    Attributes
    ----------
    center, scale : float32 (F,)
        The center of a directional column is 0, so that the mirrored market stays the negated one. A constant column has
        scale 1.
    clip : float
    """

    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    clip: float

    @staticmethod
    def fit(table: FeatureTable, start: int, stop: int, config: FeatureConfig) -> Normalizer:
        """Center and scale from the valid rows of `start` to `stop` (all rows where none is valid).

        `moments`: mean and standard deviation (directional: root mean square). `robust`: median and 1.4826 times the median
        absolute deviation (Huber 1981), the standard deviation where that is 0 (88 % of the ES sample's returns are).
        """
        if not 0 <= start < stop <= len(table.values):
            raise ValueError(f"rows {start} to {stop} of {len(table.values)}; give a training window with rows")
        rows = table.values[start:stop].astype(np.float64)
        if table.valid[start:stop].any():
            rows = rows[table.valid[start:stop]]
        robust = config.normalizer == "robust"
        center = np.median(rows, axis=0) if robust else rows.mean(axis=0)
        center[table.directional] = 0.0
        scale = np.sqrt(((rows - center) ** 2).mean(axis=0))
        if robust:
            deviation = 1.4826 * np.median(np.abs(rows - center), axis=0)
            scale = np.where(deviation > 0, deviation, scale)
        scale[scale < 1e-12] = 1.0
        return Normalizer(center.astype(np.float32), scale.astype(np.float32), config.clip)

    def apply(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(m, F) float32, new."""
        scaled: NDArray[np.float32] = (values - self.center) / self.scale
        return np.clip(scaled, -self.clip, self.clip, out=scaled)

    def to_arrays(self) -> dict[str, NDArray[np.float32]]:
        """For the checkpoint."""
        return {"center": self.center, "scale": self.scale, "clip": np.array([self.clip], np.float32)}

    @staticmethod
    def from_arrays(arrays: dict[str, NDArray[np.float32]]) -> Normalizer:
        """The normalizer that `to_arrays` stored."""
        return Normalizer(arrays["center"], arrays["scale"], float(arrays["clip"][0]))
