"""Other CUDA libraries in the process find hostsim as libcuda.so.1 and must see no device, not a broken one."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hostsim
NATIVE = Path(__file__).resolve().parents[2] / "foxhunt_rt" / "_native"


def run(code: str, **env: str) -> str:
    prelude = f"import ctypes\nsim = ctypes.CDLL({str(NATIVE / 'libfoxhunt_hostsim.so')!r}, mode=ctypes.RTLD_GLOBAL)\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], env={**os.environ, **env}, text=True, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def cuda_runtime() -> str | None:
    """A libcudart to test with: torch and CuPy reach the driver through it."""
    places = [os.path.join(p, "nvidia", "**", "libcudart.so.*") for p in sys.path if p.endswith("site-packages")]
    found = [f for p in [*places, "/usr/local/cuda*/lib64/libcudart.so.1?"] for f in glob.glob(p, recursive=True)]
    return found[0] if found else ctypes.util.find_library("cudart")


@pytest.mark.skipif(cuda_runtime() is None, reason="no CUDA runtime library is installed")
def test_the_cuda_runtime_sees_no_device() -> None:
    out = run(
        f"rt = ctypes.CDLL({cuda_runtime()!r})\n"
        "n = ctypes.c_int(-1)\n"
        "code = rt.cudaGetDeviceCount(ctypes.byref(n))\n"
        "p = ctypes.c_void_p()\n"
        "print(code, max(n.value, 0), rt.cudaMalloc(ctypes.byref(p), 16))"
    )
    assert out == "100 0 100"  # cudaErrorNoDevice


@pytest.mark.slow
def test_jax_on_the_cpu_is_not_disturbed() -> None:
    out = run(
        "from cuda.bindings import driver as cu\n"
        "assert int(cu.cuInit(0)[0]) == 0\n"
        "import jax\n"
        "print(jax.devices()[0].platform, float(jax.numpy.arange(4.0).sum()))",
        JAX_PLATFORMS="",
    )
    assert out == "cpu 6.0"


def test_cuda_python_sees_the_device_afterwards() -> None:
    out = run(
        "from cuda.bindings import driver as cu\n"
        "print(int(cu.cuInit(0)[0]), cu.cuDeviceGetCount()[1], cu.cuDeviceGetName(32, 0)[1].rstrip(b'\\0').decode())"
    )
    assert out == "0 1 foxhunt hostsim"
