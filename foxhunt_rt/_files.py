"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_whole"]


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
