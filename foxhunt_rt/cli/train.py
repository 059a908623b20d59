"""Walk-forward training: folds in time, each with its own training, validation and test window.

Without DATA: the sample bars, 62,500 bars of real ES trades, fetched once. Files: .csv, .csv.gz, .parquet.
A run leaves a folder: configuration, environment, every training record, checkpoints, result.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foxhunt_rt.cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from foxhunt_rt.train.resume import SavedRun

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train on, and where to keep it."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument("data", nargs="?", metavar="DATA", help="bars; left out: the sample bars")
    parser.add_argument("--synthetic", action="store_true", help="a simulated market instead: needs no network")
    parser.add_argument("--fold", type=int, action="append", metavar="N", dest="folds",
                        help="only this fold, from 1; the same numbers as in the whole run; may be repeated")  # fmt: skip
    parser.add_argument(
        "--runs", default="runs", metavar="DIR", help="where the run folder goes (default: %(default)s)"
    )
    parser.add_argument("--name", metavar="NAME", help="of the run folder, after the time (default: the profile)")
    parser.add_argument("--no-save", action="store_true", help="leave no run folder")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run that was interrupted or killed, in its folder; give its DATA again",
    )
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Bars and configuration are checked before the driver is loaded, so that a wrong file costs nothing."""
    from foxhunt_rt.cli.app import BEGAN
    from foxhunt_rt.cli.options import configuration

    if args.data is not None and args.synthetic:
        raise UsageError("DATA and --synthetic exclude each other; leave one out")
    resume = _resumed(args)
    config = configuration(args) if resume is None else resume.config

    from foxhunt_rt.cli.sample import bars_path
    from foxhunt_rt.market.bars import load_bars

    bars, spec, report = load_bars(bars_path(args.data, args.synthetic, config), config.market)
    for line in (*bars.notes, *report.lines()):
        print(f"- {line}")

    from foxhunt_rt.train.dataset import DataSet

    data = DataSet.prepare(bars, spec, config)

    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.telemetry import console_for
    from foxhunt_rt.train import WalkForward

    observer = console_for(sys.stdout)
    try:
        with Runtime() as rt:
            runs = None if args.no_save else Path(args.runs)
            training = WalkForward(rt, data, config, observer=observer, runs=runs, name=args.name or args.profile,
                                   resume=resume, began=BEGAN)  # fmt: skip
            try:
                result = training.run(args.folds)
            finally:
                training.close()
    finally:
        observer.close()
    if "run" in result:
        print(f"Saved in {result['run']}")
    if args.json:
        print(json.dumps(result, allow_nan=False))
    return int(ExitCode.OK)


def _resumed(args: argparse.Namespace) -> SavedRun | None:
    """The run to go on with: configuration and folds are its own."""
    if args.resume is None:
        return None
    own = {"--config": args.config, "--set": args.assignments, "--seed": args.seed, "--fold": args.folds,
           "--name": args.name, "--no-save": args.no_save,
           "--profile": args.profile != "smoke", "--runs": args.runs != "runs"}  # fmt: skip
    if given := [name for name, value in own.items() if value not in (None, [], False)]:
        raise UsageError(f"--resume goes on with the run's own configuration and folder; leave out {', '.join(given)}")
    from foxhunt_rt.train.resume import SavedRun

    return SavedRun.load(Path(args.resume))
