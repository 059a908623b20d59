"""Files to columns: CSV (plain or gzip) and Parquet through pyarrow, with errors that name file, row, rule and mend.

Columns are found by name, case and angle brackets ignored (`<CLOSE>`, `Close`, `c`). A time stamp is UTC or carries its
offset; a naive one is refused unless the caller names the zone, because a wrong guess shifts every session silently.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bars import F64, I64, BarsError, bar_clock

__all__ = ["RawBars", "read_table"]

ALIASES: dict[str, tuple[str, ...]] = {
    "ts": ("ts_event", "timestamp", "datetime", "date_time", "time", "date", "ts", "open_time"),
    "open": ("open", "o", "open_price"),
    "high": ("high", "h", "high_price"),
    "low": ("low", "l", "low_price"),
    "close": ("close", "c", "last", "close_price"),
    "volume": ("volume", "vol", "v", "qty", "quantity", "size"),
    "symbol": ("symbol", "ticker", "raw_symbol", "contract", "instrument"),
}
_PRICES = ("open", "high", "low", "close")


@dataclasses.dataclass(frozen=True)
class RawBars:
    """Columns as read, all symbols mixed, nothing checked yet. `row` is the line (CSV) or row (Parquet) in the file, from 1."""

    ts: I64
    open: F64
    high: F64
    low: F64
    close: F64
    volume: F64
    code: NDArray[np.int32]  # index into symbols
    row: I64
    segment: NDArray[np.int32]  # rolls so far; all 0 before the front month is chosen
    mark: NDArray[np.uint16]
    symbols: tuple[str, ...]
    symbol: str
    clock: str
    source: str
    contracts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, keep: NDArray[Any]) -> RawBars:
        """The selected rows, copied."""
        return dataclasses.replace(self, **{name: getattr(self, name)[keep] for name in ROW_COLUMNS})

    def with_note(self, *notes: str) -> RawBars:
        """The same rows with lines added to `notes`."""
        return dataclasses.replace(self, notes=self.notes + tuple(note for note in notes if note))


ROW_COLUMNS = ("ts", "open", "high", "low", "close", "volume", "code", "row", "segment", "mark")


def read_table(path: str | Path, *, timezone: str) -> RawBars:
    """Reads one file.

    Parameters
    ----------
    path : path
        `.csv`, `.csv.gz`, `.parquet` (or `.pq`), `.dbn`, `.dbn.zst`.
    timezone : str
        Zone of naive time stamps ("UTC"; "" refuses them). Time stamps with an offset are always taken as they are.

    Raises
    ------
    BarsError
        Missing, empty, truncated, of another format, without a needed column, or with a cell that is no number.
    """
    path = Path(path)
    name = path.name
    if path.is_dir():
        raise BarsError(f"{path}: is a folder; give a CSV or Parquet file of bars")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BarsError(f"{path}: no such file; check the path, or leave it out to use the sample bars") from None
    except OSError as error:
        raise BarsError(f"{path}: cannot be read ({error.strerror}); mend its permissions") from error
    if not data:
        raise BarsError(f"{name}: the file is empty; fetch it again")
    lower = name.lower()
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise BarsError(f"{name}: reading bars needs pyarrow; pip install 'foxhunt-rt[train]'") from error
    if lower.endswith((".dbn", ".dbn.zst", ".dbz")):
        from .read_dbn import read_dbn

        return read_dbn(name, data)
    if data[:4] == b"PAR1" or lower.endswith((".parquet", ".pq")):
        table, first_row = _parquet(name, data), 1
    elif lower.endswith((".csv", ".csv.gz", ".txt", ".tsv", ".gz")):
        table, first_row = _csv(name, _gunzip(name, data)), 2
    else:
        raise BarsError(f"{name}: the format is not known by this ending; give .csv, .csv.gz, .parquet or .dbn.zst")
    return _columns(name, table, first_row, timezone)


def _gunzip(name: str, data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        if name.lower().endswith(".gz"):
            raise BarsError(f"{name}: is not a gzip file; rename it without .gz, or fetch it again")
        return data
    try:
        # The gzip module, not pyarrow's stream: it tells a stream that ends early from one that ends.
        return gzip.decompress(data)
    except EOFError:
        raise BarsError(f"{name}: the gzip stream is truncated; fetch the file again") from None
    except (OSError, zlib.error) as error:
        raise BarsError(f"{name}: the gzip stream is damaged ({error}); fetch the file again") from None


def _csv(name: str, data: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    data = data.removeprefix(b"\xef\xbb\xbf").rstrip()
    header = data.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if not header:
        raise BarsError(f"{name}: row 1 is blank; the first row must name the columns")
    delimiter = max(",;\t", key=header.count)
    names = header.split(delimiter)
    found = _find_columns(name, names)
    if b"\n" not in data:
        raise BarsError(f"{name}: there are columns but no rows; fetch the file again")
    types = {names[found[key]]: pa.float64() for key in (*_PRICES, "volume") if key in found}
    if "symbol" in found:
        types[names[found["symbol"]]] = pa.string()
    try:
        return csv.read_csv(
            io.BytesIO(data),
            # One thread: only then does pyarrow name the row of a bad cell, and blank lines count as rows.
            read_options=csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1, block_size=1 << 24),
            parse_options=csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=[names[i] for i in found.values()], strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise BarsError(f"{name}: {_arrow_reason(str(error))}; mend that row or fetch the file again") from None


def _arrow_reason(text: str) -> str:
    """pyarrow's message; its rows are lines of the file, the header is row 1."""
    text = text.splitlines()[0].rstrip(". ")
    text = re.sub(r"^In CSV column #\d+: ", "", text)
    text = re.sub(r"\b(Row #)(\d+)\b", lambda m: f"row {m.group(2)}", text)
    return text


def _parquet(name: str, data: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    if data[:4] != b"PAR1" or data[-4:] != b"PAR1":
        what = "is not a Parquet file" if data[:4] != b"PAR1" else "is truncated: its footer is missing"
        raise BarsError(f"{name}: {what}; fetch the file again")
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
        names = file.schema_arrow.names
        found = _find_columns(name, names)
        table = file.read(columns=[names[i] for i in found.values()])
        return table.replace_schema_metadata(file.schema_arrow.metadata)
    except (pa.ArrowInvalid, OSError) as error:
        raise BarsError(f"{name}: damaged Parquet ({str(error).splitlines()[0]}); fetch the file again") from None


def _find_columns(name: str, names: list[str]) -> dict[str, int]:
    """Position of each known column; a name earlier in the alias list wins."""
    plain = [text.strip().strip('"<>').lower() for text in names]
    found: dict[str, int] = {}
    for key, aliases in ALIASES.items():
        for alias in aliases:
            if alias in plain:
                found[key] = plain.index(alias)
                break
    if plain.count("date") and plain.count("time") and "ts_event" not in plain:
        raise BarsError(f"{name}: date and time stand in two columns; join them into one ts_event column in UTC")
    missing = [key for key in ("ts", *_PRICES, "volume") if key not in found]
    if missing:
        wanted = ", ".join("ts_event" if key == "ts" else key for key in missing)
        raise BarsError(f"{name}: no column {wanted} among {', '.join(names)[:120]}; rename the columns")
    return found


def _columns(name: str, table: Any, first_row: int, timezone: str) -> RawBars:
    import pyarrow as pa

    found = _find_columns(name, table.schema.names)
    n = table.num_rows
    if n == 0:
        raise BarsError(f"{name}: there are columns but no rows; fetch the file again")
    notes: list[str] = []
    numbers: dict[str, F64] = {}
    for key in (*_PRICES, "volume"):
        column = table.column(found[key])
        label = table.schema.names[found[key]]
        if not (
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
        ):
            raise BarsError(f"{name}: column {label} has type {column.type}; store it as float64")
        if key != "volume" and pa.types.is_integer(column.type) and _typical(column) > 1e8:
            raise BarsError(
                f"{name}: column {label} looks like fixed point in 1e-9; divide it by 1e9 and store float64"
            )
        numbers[key] = np.array(column.cast(pa.float64()).to_numpy(), np.float64)  # nulls become NaN; validated later
    ts = _timestamps(name, table.column(found["ts"]), table.schema.names[found["ts"]], first_row, timezone, notes)
    if "symbol" in found:
        encoded = table.column(found["symbol"]).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        symbols = tuple(encoded.dictionary.to_pylist())
        code = np.array(encoded.indices.to_numpy(zero_copy_only=False), np.int32)
    else:
        symbols, code = ("",), np.zeros(n, np.int32)
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items() if k.startswith(b"foxhunt.")}
    notes += [note for note in metadata.get("foxhunt.notes", "").split("\n") if note]
    first = code == code[0]
    return RawBars(
        ts=ts,
        code=code,
        row=np.arange(first_row, first_row + n, dtype=np.int64),
        segment=np.zeros(n, np.int32),
        mark=np.zeros(n, np.uint16),
        symbols=symbols,
        symbol=symbols[code[0]],
        clock=metadata.get("foxhunt.clock") or bar_clock(ts[first]),
        source=metadata.get("foxhunt.source", name),
        notes=tuple(notes),
        open=numbers["open"],
        high=numbers["high"],
        low=numbers["low"],
        close=numbers["close"],
        volume=numbers["volume"],
    )


def _typical(column: Any) -> float:
    import pyarrow.compute as pc

    return float(pc.mean(column).as_py() or 0.0)


def _timestamps(name: str, column: Any, label: str, first_row: int, timezone: str, notes: list[str]) -> I64:
    """Nanoseconds UTC from a timestamp, text or integer column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        row = first_row + int(np.argmax(np.asarray(column.is_null())))
        raise BarsError(f"{name}: row {row}: {label} is empty; remove the row or fetch the file again")
    kind = column.type
    if pa.types.is_integer(kind):
        return _epoch(name, column, label, notes)
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("ns")), pa.timestamp("ns")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _parse_text(name, column, label, first_row)
        kind = column.type
    if not pa.types.is_timestamp(kind):
        raise BarsError(f"{name}: column {label} has type {kind}; store UTC time stamps (ISO 8601 with Z)")
    if kind.tz is None:
        if not timezone:
            raise BarsError(
                f"{name}: {label} has no time zone; write times with Z or an offset, or name the zone: --set market.timezone=UTC"
            )
        notes.append(f"time stamps without a zone are taken as {timezone}")
        try:
            column = pc.assume_timezone(column, timezone, ambiguous="earliest", nonexistent="latest")
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
            raise BarsError(
                f"{name}: time zone {timezone!r} is not known ({error}); give UTC or an IANA name"
            ) from None
    return np.array(column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_numpy(), np.int64)


def _epoch(name: str, column: Any, label: str, notes: list[str]) -> I64:
    """Integer time stamps: since 1970 UTC; the unit follows from the size, which is unambiguous from 1973 to 2200."""
    values = np.array(column.to_numpy(), np.int64)
    largest = float(np.abs(values).max())
    for unit, scale, low in (("ns", 1, 1e17), ("us", 10**3, 1e14), ("ms", 10**6, 1e11), ("s", 10**9, 1e8)):
        if low <= largest < low * 100:
            notes.append(f"integer time stamps are taken as {unit} since 1970 UTC")
            return values * scale
    raise BarsError(f"{name}: integers in {label} are no time since 1970 in s, ms, us or ns; store ISO 8601 with Z")


def _parse_text(name: str, column: Any, label: str, first_row: int) -> Any:
    import pyarrow as pa

    text = column.to_pylist()
    zoned = [bool(re.search(r"(Z|[+-]\d\d:?\d\d)$", value.strip())) for value in text]
    if any(zoned) and not all(zoned):
        row = first_row + zoned.index(False)
        raise BarsError(f"{name}: row {row}: {label} has no time zone but others have; write every time with Z")
    try:
        return column.cast(pa.timestamp("ns", tz="UTC") if zoned[0] else pa.timestamp("ns"))
    except pa.ArrowInvalid:
        pass
    for i, value in enumerate(text):  # find the one that cannot be read
        try:
            pa.scalar(value).cast(pa.timestamp("ns", tz="UTC") if zoned[i] else pa.timestamp("ns"))
        except pa.ArrowInvalid:
            raise BarsError(f"{name}: row {first_row + i}: {label} = {value!r} is no ISO 8601 time; mend it") from None
    raise BarsError(f"{name}: {label} cannot be read as times; write ISO 8601 with Z")
