"""Which libcuda this process talks to: NVIDIA's, or hostsim, the software driver that the package carries.

``FOXHUNT_DRIVER`` decides: ``cuda``, ``hostsim``, or ``auto`` (the default: hostsim when NVML reports no device). The choice is
made at the first use, never at import. hostsim works by its SONAME: a library named libcuda.so.1 that is loaded
RTLD_GLOBAL before the first cuda-python call is the one that glibc answers cuda-python's dlopen with.

``FOXHUNT_TRACE=1`` puts the forwarding libcuda of `foxhunt_rt.driver.shim` in front of either, in the same way.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

from foxhunt_rt.driver.errors import DriverNotFound, LifetimeError
from foxhunt_rt.driver.features import MACHINES
from foxhunt_rt.driver.shim import Shim, find_libcuda

NATIVE = Path(__file__).resolve().parent.parent / "_native"
HOSTSIM = NATIVE / "libfoxhunt_hostsim.so"

_lock = threading.Lock()
_cu: Any = None
_kind: str | None = None
_hostsim: ctypes.CDLL | None = None
_forked = False


def _after_fork_in_child() -> None:
    global _forked, _lock
    _forked, _lock = _cu is not None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
_shim: Shim | None = None


def gpu_count() -> int:
    """Number of NVIDIA GPUs by device files and NVML, without loading libcuda."""
    if not glob.glob("/dev/nvidia[0-9]*") and not os.path.exists("/dev/dxg"):
        return 0
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # NVML raises its own types, and OSError when the library is missing: no GPU either way
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _loaded_libcuda() -> str | None:
    """Path of a libcuda that something else in this process has loaded already."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").rpartition(" ")[2]
                if os.path.basename(path).startswith("libcuda.so"):
                    return path
    except OSError:
        return None
    return None


def load() -> Any:
    """Returns the module ``cuda.bindings.driver``, with the chosen driver behind it.

    Raises
    ------
    DriverNotFound
        When the wanted driver is not there, or another one is loaded already.
    LifetimeError
        In a forked child of a process that had loaded it.
    """
    global _cu, _kind
    if _forked:
        raise LifetimeError("CUDA does not work in a forked child of a process that uses it: fork before the first Runtime is "
                            "made, or start workers with the spawn method")  # fmt: skip
    if _cu is not None:
        return _cu
    with _lock:
        if _cu is not None:
            return _cu
        want = os.environ.get("FOXHUNT_DRIVER", "auto")
        if want not in ("auto", "cuda", "hostsim"):
            raise DriverNotFound(f"FOXHUNT_DRIVER={want!r} is unknown: use auto, cuda or hostsim")
        kind = want if want != "auto" else ("cuda" if gpu_count() else "hostsim")
        if kind == "hostsim":
            _check_hostsim()
        if os.environ.get("FOXHUNT_TRACE", "0") not in ("", "0"):
            _load_shim(kind)
        if kind == "hostsim":
            _load_hostsim()
        if want == "auto":
            what = "NVIDIA's driver" if kind == "cuda" else "hostsim (no GPU found): kernels run on the CPU"
            print(f"foxhunt-rt: using {what}", file=sys.stderr)
        from cuda.bindings import driver as cu

        try:
            code = int(cu.cuInit(0)[0])
        except RuntimeError as e:  # cuda-bindings, when there is no libcuda to load
            raise DriverNotFound(f"libcuda.so.1 cannot be used ({e}): install NVIDIA's driver, or set "
                                 "FOXHUNT_DRIVER=hostsim") from e  # fmt: skip
        if code:
            name = cu.cuGetErrorName(cu.CUresult(code))[1].decode()
            raise DriverNotFound(f"cuInit answered {name}: check nvidia-smi, or set FOXHUNT_DRIVER=hostsim")
        _kind, _cu = kind, cu
    return _cu


def import_bindings() -> None:
    """Imports cuda.bindings, which loads no driver: once, before many forks each load theirs."""
    from cuda.bindings import driver

    assert driver.cuInit


def _load_shim(kind: str) -> None:
    """Puts the call trace in front of the driver."""
    global _shim
    other = _loaded_libcuda()
    if other is not None:
        raise DriverNotFound(f"FOXHUNT_TRACE: {other} is loaded in this process already, so its calls cannot be traced: use "
                             "foxhunt_rt before other CUDA libraries")  # fmt: skip
    _shim = Shim(str(HOSTSIM) if kind == "hostsim" else find_libcuda())


def _check_hostsim() -> None:
    other = _loaded_libcuda()
    if other is not None:
        raise DriverNotFound(f"{other} is loaded in this process already, so hostsim cannot take its place: "
                             "use foxhunt_rt before other CUDA libraries, or set FOXHUNT_DRIVER=cuda")  # fmt: skip
    if platform.machine() not in MACHINES:
        raise DriverNotFound(
            f"hostsim runs on {' and '.join(MACHINES)}, not on {platform.machine()}: set FOXHUNT_DRIVER=cuda"
        )
    if not HOSTSIM.exists():
        raise DriverNotFound("hostsim is not built (foxhunt_rt/_native/libfoxhunt_hostsim.so is missing): "
                             "run python tools/build.py, or pip install .")  # fmt: skip


def _load_hostsim() -> None:
    global _hostsim
    _hostsim = ctypes.CDLL(str(HOSTSIM), mode=ctypes.RTLD_GLOBAL)
    _hostsim.fxHostsimConfigure.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
    _hostsim.fxHostsimOption.argtypes = [ctypes.c_char_p]
    _hostsim.fxHostsimOption.restype = ctypes.c_longlong
    _hostsim.fxHostsimLastReport.restype = ctypes.c_char_p
    _hostsim.fxHostsimLabel.argtypes = [ctypes.c_ulonglong, ctypes.c_char_p]
    _hostsim.fxHostsimCounter.argtypes = [ctypes.c_char_p]
    _hostsim.fxHostsimCounter.restype = ctypes.c_ulonglong


def kind() -> str:
    """``"cuda"`` or ``"hostsim"``: the driver in use. Loads it."""
    load()
    assert _kind is not None
    return _kind


def libcuda() -> ctypes.CDLL:
    """The loaded driver for ctypes, hostsim included (found by its SONAME): for what cuda.bindings do not pass on."""
    load()
    return ctypes.CDLL("libcuda.so.1")


def hostsim() -> ctypes.CDLL | None:
    """The hostsim library with its extra entry points (``fxHostsim...``), or None under NVIDIA's driver."""
    load()
    return _hostsim


def shim() -> Shim | None:
    """The call trace in front of the driver, or None where FOXHUNT_TRACE is not set. Loads the driver."""
    load()
    return _shim
