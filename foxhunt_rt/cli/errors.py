"""What a person sees when something fails: one line that ends with the mend, and an exit code to branch on."""

from __future__ import annotations

import enum

__all__ = ["ExitCode", "UsageError", "exit_code", "one_line"]


class ExitCode(enum.IntEnum):
    """Exit codes of every command; documented in docs/cli.md."""

    OK = 0
    FAILURE = 1  # anything without a code of its own; `verify` that found a difference
    USAGE = 2  # the command line or the configuration
    DATA = 3  # bars that cannot be read, used or fetched
    MACHINE = 4  # no driver, no image for this architecture, native parts not built, an optional package missing
    GUARD = 5  # the device guard found a fault and ended training
    INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT


class UsageError(Exception):
    """A command line that cannot be understood."""


def exit_code(error: BaseException) -> ExitCode:
    """The exit code for an exception."""
    # Imported here: an error is rare, and these modules must not slow down `--help`.
    from foxhunt_rt._optional import MissingExtra
    from foxhunt_rt.config import ConfigError
    from foxhunt_rt.driver.errors import DriverNotFound
    from foxhunt_rt.kernels.errors import AbiError, ArchitectureError, KernelNotFound
    from foxhunt_rt.market.bars import BarsError
    from foxhunt_rt.dqn.guard import GuardFault

    table: list[tuple[tuple[type[BaseException], ...], ExitCode]] = [
        ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
        ((UsageError, ConfigError), ExitCode.USAGE),
        ((BarsError,), ExitCode.DATA),
        ((DriverNotFound, ArchitectureError, KernelNotFound, AbiError, MissingExtra), ExitCode.MACHINE),
        ((GuardFault,), ExitCode.GUARD),
    ]
    return next((code for kinds, code in table if isinstance(error, kinds)), ExitCode.FAILURE)


def one_line(error: BaseException) -> str:
    """The message of an error raised on purpose; an unexpected one is named as such."""
    from foxhunt_rt._optional import MissingExtra
    from foxhunt_rt.driver.errors import FoxhuntError

    if isinstance(error, KeyboardInterrupt):
        text = str(error) or "interrupted; nothing was written"
    elif isinstance(error, (FoxhuntError, MissingExtra, NotImplementedError)) or exit_code(error) is not ExitCode.FAILURE:
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}; check the path, its permissions and the free space"
    else:
        text = f"internal error, {type(error).__name__}: {error}; run again with -v and report the traceback"
    return " ".join(text.split())
