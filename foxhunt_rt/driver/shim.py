"""The forwarding libcuda.so.1 (cuda_src/trace): counts and logs every driver call of this process, whoever makes it.

Loaded by `foxhunt_rt.driver.load` before the driver when FOXHUNT_TRACE is set. It works by its SONAME, as hostsim does, so it
must come before anything else that uses CUDA.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from foxhunt_rt.driver.errors import DriverNotFound, FoxhuntError

LIBRARY = Path(__file__).resolve().parent.parent / "_native" / "libfoxhunt_trace.so"

# Run in a process of its own, since the first library of that SONAME in a process is the one that answers for it.
_FIND = """
import ctypes
ctypes.CDLL("libcuda.so.1")
for line in open("/proc/self/maps"):
    path = line.rstrip("\\n").rpartition(" ")[2]
    if path.rpartition("/")[2].startswith("libcuda.so"):
        print(path)
        break
"""


def find_libcuda() -> str:
    """Path of the libcuda.so.1 that this process would load."""
    found = subprocess.run([sys.executable, "-c", _FIND], capture_output=True, text=True, check=False)
    if found.returncode or not found.stdout.strip():
        raise DriverNotFound("libcuda.so.1 cannot be loaded, so there is nothing to trace: install NVIDIA's driver, or set "
                             "FOXHUNT_DRIVER=hostsim")  # fmt: skip
    return found.stdout.strip()


class Shim:
    """The loaded library, in front of a driver.

    Parameters
    ----------
    driver : str
        Absolute path of the driver that it forwards to.
    """

    def __init__(self, driver: str) -> None:
        if not LIBRARY.exists():
            raise DriverNotFound("FOXHUNT_TRACE is set, but foxhunt_rt/_native/libfoxhunt_trace.so is missing: run python "
                                 "tools/build.py (it is written for x86-64), or unset it")  # fmt: skip
        self._library = library = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
        library.fxTraceOpen.argtypes, library.fxTraceOpen.restype = [ctypes.c_char_p], ctypes.c_char_p
        library.fxTraceName.restype = ctypes.c_char_p
        library.fxTraceCount.restype = library.fxTraceTotal.restype = ctypes.c_uint64
        library.fxTraceAt.argtypes = [ctypes.c_uint64]
        problem = library.fxTraceOpen(driver.encode())
        if problem is not None:
            raise DriverNotFound(
                f"the trace cannot load {driver} ({problem.decode()}): mend it, or unset FOXHUNT_TRACE"
            )
        self.driver = driver

    def _name(self, slot: int) -> str:
        return str(self._library.fxTraceName(slot).decode())

    def counts(self) -> dict[str, int]:
        """Calls since the process began, by entry point without version suffix; those never made are left out."""
        found: dict[str, int] = {}
        for slot in range(self._library.fxTraceSlots()):
            if calls := self._library.fxTraceCount(slot):
                name = self._name(slot)
                found[name] = found.get(name, 0) + calls
        return found

    @property
    def total(self) -> int:
        """Calls since the process began."""
        return int(self._library.fxTraceTotal())

    def log(self, since: int) -> list[str]:
        """Names of the calls from number ``since`` (a former `total`) on, in order.

        Raises
        ------
        FoxhuntError
            More were made than the log remembers, 65,536.
        """
        slots = [self._library.fxTraceAt(position) for position in range(since, self.total)]
        if -1 in slots:
            raise FoxhuntError(
                f"{len(slots):,} driver calls are more than the trace remembers: read its log more often"
            )
        return [self._name(slot) for slot in slots]


__all__ = ["LIBRARY", "Shim", "find_libcuda"]
