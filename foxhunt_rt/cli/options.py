"""Arguments that several commands share, and how they become a configuration."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foxhunt_rt.config import Config

__all__ = ["add_config_arguments", "configuration"]


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`--profile`, `--config`, `--set` and `--seed`."""
    parser.add_argument("--profile", default="smoke", metavar="NAME",
                        help="starting point: smoke (seconds on a CPU), default or production (now: %(default)s)")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="TOML laid over the profile, such as a run's config.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
                        help="change one option, for example --set optim.lr=3e-4; may be repeated")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="of every random number (train.seed)")


def configuration(args: argparse.Namespace) -> Config:
    """The configuration of a command line: profile, then file, then assignments in order, then the seed.

    Raises
    ------
    foxhunt_rt.config.ConfigError
        An unknown key, a wrong type, or a value out of range; the message names the near key.
    """
    from foxhunt_rt.config import Config

    config = Config.profile(args.profile)
    if args.config is not None:
        config = Config.load(args.config, config)
    config = config.with_set(args.assignments)
    if args.seed is not None:
        config = config.with_set([f"train.seed={args.seed}"])
    return config
