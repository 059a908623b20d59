"""Files that are whole or absent, and where those are that belong to the user rather than to a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["cache_folder", "write_whole"]


def cache_folder() -> Path:
    """Where bars that were fetched or simulated and measured choices are kept: ``FOXHUNT_CACHE``, else
    ``XDG_CACHE_HOME/foxhunt-rt``, else ``~/.cache/foxhunt-rt``. Made when something is written."""
    own = os.environ.get("FOXHUNT_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "foxhunt-rt"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Calls ``write`` with a temporary name beside ``path``, flushes to disk and renames; on an error nothing stays.

    A reader, a crash and a loss of power see the old file or the new one. After SIGKILL the temporary file may stay, hidden.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
        _flush(path.parent, os.O_RDONLY)  # the new name itself
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
