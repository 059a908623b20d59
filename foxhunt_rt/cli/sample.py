"""Fetch the sample bars, 62,500 bars of real ES trades (MIT-licensed), or make simulated ones, and say where they are.

`train` without a file does the same. The bars are kept in the user's cache (FOXHUNT_CACHE to place it elsewhere).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foxhunt_rt.cli.errors import ExitCode

if TYPE_CHECKING:
    from foxhunt_rt.config import Config

__all__ = ["bars_path", "cached", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--synthetic` and what configures the simulated market."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument("--synthetic", action="store_true", help="a simulated market instead: needs no network")
    add_config_arguments(parser)


def cached() -> Path | None:
    """The sample bars, if they were fetched before."""
    from foxhunt_rt.market.sample import cache_folder

    return next(iter(sorted(cache_folder().glob("es_*.parquet"))), None)


def bars_path(data: str | None, synthetic: bool, config: Config) -> Path:
    """The file that a command reads: DATA, the simulated market, or the sample, fetched when it is not there yet."""
    from foxhunt_rt.market import sample

    if data is not None:
        return Path(data)
    if synthetic:
        return sample.synthetic_path(config.train.seed, config.market.synthetic_bars)
    return sample.sample_path()


def run(args: argparse.Namespace) -> int:
    """Fetches, loads as `train` does, and describes."""
    from foxhunt_rt.cli.options import configuration
    from foxhunt_rt.market.bars import load_bars

    config = configuration(args)
    path = bars_path(None, args.synthetic, config)
    bars, spec, report = load_bars(path, config.market)
    told: dict[str, Any] = bars.describe()
    print(f"{told['bars']:,} bars of {told['clock']}, {told['symbol']}, {told['first']} to {told['last']}")
    print(f"{told['sessions']} sessions, {told['segments']} segments, tick {spec.tick:g}, {spec.multiplier:g} a point")
    for line in (*bars.notes, *report.lines()):
        print(f"- {line}")
    print(path)
    if args.json:
        print(json.dumps({"status": "ok", "path": str(path), **told, "contract": spec.to_dict()}))
    return int(ExitCode.OK)
