"""Databento Binary Encoding to columns: the OHLCV schemas of DBN versions 1 to 3, plain or zstd.

Decoded here with NumPy, without Databento's package: the bars are fixed 56-byte records, and of the metadata only the
schema, the bounds and the symbol mappings are needed (layout: https://databento.com/docs/standards-and-conventions/databento-binary-encoding).
What a decoder that stops at the last whole record hides is an error here: a zstd frame that ends early, and bytes that
make no whole record. A plain file cut exactly between two records cannot be told from a short one; a note says how far
before the end of the request its bars stop.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bars import BarsError
from .read import RawBars

__all__ = ["read_dbn"]

_ZSTD = b"\x28\xb5\x2f\xfd"
_CLOCKS = {5: "1 second", 6: "1 minute", 7: "1 hour", 8: "1 day"}  # ohlcv-1s, -1m, -1h, -1d
_RTYPES = {5: 32, 6: 33, 7: 34, 8: 35}
_FIXED = 108  # prefix and fixed part of the metadata
_UNDEFINED = np.iinfo(np.int64).max
_OHLCV = [
    ("length", "u1"),
    ("rtype", "u1"),
    ("publisher", "<u2"),
    ("instrument", "<u4"),
    ("ts", "<u8"),
    ("open", "<i8"),
    ("high", "<i8"),
    ("low", "<i8"),
    ("close", "<i8"),
    ("volume", "<u8"),
]
_DAY = 86_400_000_000_000


def read_dbn(name: str, data: bytes) -> RawBars:
    """The bars of a DBN file.

    Raises
    ------
    BarsError
        Truncated, not DBN, a legacy DBZ, or of a schema that holds no bars.
    """
    data = _decompress(name, data)
    if data[:3] != b"DBN" or len(data) < _FIXED:
        raise BarsError(f"{name}: is not DBN (a legacy DBZ is not read); convert it with Databento's dbn tool")
    version, length = data[3], int.from_bytes(data[4:8], "little")
    if not 1 <= version <= 3:
        raise BarsError(f"{name}: DBN version {version} is not known; store it as version 3")
    if len(data) < 8 + length:
        raise BarsError(f"{name}: is truncated inside its metadata; fetch the file again")
    (schema,) = struct.unpack_from("<H", data, 24)
    _, end = struct.unpack_from("<QQ", data, 26)
    ts_out = data[60 if version == 1 else 52]
    if schema not in _CLOCKS:
        raise BarsError(f"{name}: its schema is not ohlcv-1s, -1m, -1h or -1d; fetch bars of schema ohlcv-1m")
    record = np.dtype([*_OHLCV, ("ts_out", "<u8")] if ts_out else _OHLCV)
    body = len(data) - 8 - length
    if body % record.itemsize:
        raise BarsError(
            f"{name}: is truncated: {body % record.itemsize} bytes are left after row {body // record.itemsize}; "
            "fetch the file again"
        )
    rows = np.frombuffer(data, record, offset=8 + length)
    if not len(rows):
        raise BarsError(f"{name}: there is metadata but no bar; fetch a range in which the market was open")
    alien = np.flatnonzero((rows["rtype"] != _RTYPES[schema]) | (rows["length"] * 4 != record.itemsize))
    if alien.size:
        raise BarsError(
            f"{name}: row {alien[0] + 1}: record type {rows['rtype'][alien[0]]} in a file of {_CLOCKS[schema]} bars; "
            "store one schema a file"
        )
    ts = rows["ts"].astype(np.int64)
    symbols, code = _symbols(rows["instrument"], ts, _mappings(name, data, version))
    notes = []
    if 0 < end < _UNDEFINED and end - int(ts.max()) > 5 * _DAY:
        notes.append(f"the bars stop {(end - int(ts.max())) / _DAY:.0f} days before the end of the request: truncated?")
    prices = {}
    for key in ("open", "high", "low", "close"):
        fixed = rows[key]
        # Exact tick prices: the nearest double of the decimal number, as a CSV of it would give.
        prices[key] = np.where(fixed == _UNDEFINED, np.nan, fixed / 1e9)
    return RawBars(
        ts=ts,
        open=prices["open"],
        high=prices["high"],
        low=prices["low"],
        close=prices["close"],
        volume=rows["volume"].astype(np.float64),
        code=code,
        row=np.arange(1, len(rows) + 1, dtype=np.int64),
        segment=np.zeros(len(rows), np.int32),
        mark=np.zeros(len(rows), np.uint16),
        symbols=symbols,
        symbol=symbols[code[0]],
        clock=_CLOCKS[schema],
        source=name,
        notes=tuple(notes),
    )


def _decompress(name: str, data: bytes) -> bytes:
    if data[:4] != _ZSTD:
        return data
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read())
    except OSError as error:
        what = "truncated" if "Truncated" in str(error) else f"damaged ({str(error).splitlines()[0]})"
        raise BarsError(f"{name}: the zstd stream is {what}; fetch the file again") from None


def _mappings(name: str, data: bytes, version: int) -> list[tuple[str, int, int, int]]:
    """(symbol, first day, day after the last, instrument id) of each mapping interval; days since 1970."""
    width = 22 if version == 1 else struct.unpack_from("<H", data, 53)[0]
    at = _FIXED

    def number() -> int:
        nonlocal at
        (value,) = struct.unpack_from("<I", data, at)
        at += 4
        return int(value)

    def text() -> str:
        nonlocal at
        value = data[at : at + width].split(b"\0", 1)[0].decode("ascii", "replace")
        at += width
        return value

    def day(yyyymmdd: int) -> int:
        iso = f"{yyyymmdd // 10000:04d}-{yyyymmdd // 100 % 100:02d}-{yyyymmdd % 100:02d}"
        return int(np.datetime64(iso, "D").astype(np.int64))

    try:
        definition = number()  # bytes of a schema definition, unused so far
        at += definition
        for _ in ("symbols", "partial", "not found"):
            count = number()  # moves `at`
            at += count * width
        found = []
        for _ in range(number()):
            symbol = text()
            for _ in range(number()):
                first, last, instrument = day(number()), day(number()), text()
                if instrument.isdigit():
                    found.append((symbol, first, last, int(instrument)))
        return found
    except (struct.error, ValueError) as error:
        raise BarsError(f"{name}: its symbol mappings cannot be read ({error}); fetch the file again") from None


def _symbols(
    instrument: NDArray[Any], ts: NDArray[np.int64], mappings: list[tuple[str, int, int, int]]
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Symbol of each row by its instrument and date; an instrument without a mapping is called by its number."""
    ids, index = np.unique(instrument, return_inverse=True)
    code = index.astype(np.int32)
    names = [str(number) for number in ids]
    day = np.floor_divide(ts, _DAY)
    place = {int(number): i for i, number in enumerate(ids)}
    known: dict[str, int] = {}
    for symbol, first, last, number in mappings:
        if number not in place:
            continue
        rows = (index == place[number]) & (day >= first) & (day < last)
        if symbol not in known:
            known[symbol] = len(names)
            names.append(symbol)
        code[rows] = known[symbol]
    used, code_used = np.unique(code, return_inverse=True)
    return tuple(names[i] for i in used), code_used.astype(np.int32)
