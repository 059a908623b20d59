"""The command line, `foxhunt-rt`: one module a command, one place for errors and exit codes (docs/cli.md).

Nothing here computes: commands read arguments, call the layers below, and print. Heavy imports stand inside `run`, so that
`--help`, `doctor` and a typing error answer at once, also in an installation that is broken.
"""

from foxhunt_rt.cli.app import main

__all__ = ["main"]
