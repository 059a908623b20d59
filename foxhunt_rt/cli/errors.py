"""What a person sees when something fails: one line that ends with the mend, and an exit code to branch on."""

from __future__ import annotations

import enum
import sys

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
    TERMINATED = 143  # 128 + SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, where nothing better is done about it."""


class UsageError(Exception):
    """A command line that cannot be understood."""


#: Module, class -> exit code; the first that fits counts. By name, so that an error imports nothing: an exception can only
#: come from a module that is loaded.
_CODES = (
    ("foxhunt_rt.cli.errors", "Terminated", ExitCode.TERMINATED),
    ("foxhunt_rt.train.walkforward", "TrainingTerminated", ExitCode.TERMINATED),
    ("builtins", "KeyboardInterrupt", ExitCode.INTERRUPTED),
    ("foxhunt_rt.cli.errors", "UsageError", ExitCode.USAGE),
    ("foxhunt_rt.config", "ConfigError", ExitCode.USAGE),
    ("foxhunt_rt.dqn.layout", "LayoutError", ExitCode.USAGE),
    ("foxhunt_rt.dqn.children.ddqn", "BranchError", ExitCode.USAGE),
    ("foxhunt_rt.replay.errors", "ReplayError", ExitCode.USAGE),
    ("foxhunt_rt.market.bars", "BarsError", ExitCode.DATA),
    ("foxhunt_rt.train.resume", "ResumeError", ExitCode.DATA),
    ("foxhunt_rt.driver.errors", "DriverNotFound", ExitCode.MACHINE),
    ("foxhunt_rt.kernels.errors", "ArchitectureError", ExitCode.MACHINE),
    ("foxhunt_rt.kernels.errors", "KernelNotFound", ExitCode.MACHINE),
    ("foxhunt_rt.kernels.errors", "AbiError", ExitCode.MACHINE),
    ("foxhunt_rt._optional", "MissingExtra", ExitCode.MACHINE),
    ("foxhunt_rt.cli.sanitize", "SanitizerMissing", ExitCode.MACHINE),
    ("foxhunt_rt.dqn.guard", "GuardFault", ExitCode.GUARD),
)


def _is(error: BaseException, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None) if loaded is not None else None
    return kind is not None and isinstance(error, kind)


def _meant(error: BaseException) -> BaseException:
    """A missing extra for the import statement that met it, else the error itself."""
    if not isinstance(error, ModuleNotFoundError):
        return error
    from foxhunt_rt._optional import as_missing

    return as_missing(error) or error


def exit_code(error: BaseException) -> ExitCode:
    """The exit code for an exception."""
    error = _meant(error)
    return next((code for module, name, code in _CODES if _is(error, module, name)), ExitCode.FAILURE)


def one_line(error: BaseException) -> str:
    """The message of an error raised on purpose; an unexpected one is named as such."""
    error = _meant(error)
    if isinstance(error, KeyboardInterrupt):
        text = str(error) or "interrupted; nothing was written"
    elif (_is(error, "foxhunt_rt.driver.errors", "FoxhuntError") or isinstance(error, NotImplementedError)
          or exit_code(error) is not ExitCode.FAILURE):  # fmt: skip
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}; check the path, its permissions and the free space"
    else:
        text = f"internal error, {type(error).__name__}: {error}; run again with -v and report the traceback"
    return " ".join(text.split())
