"""Where the CUDA compiler and headers are: a toolkit on the machine, else NVIDIA's wheels. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CUDA_MAJOR = 13
# One minor version for every piece: the driver that a PTX needs is at least the toolkit's, so not newer than need be.
WHEEL_SPEC = ">=13.0,<13.1"
HEADER_WHEELS = [f"nvidia-cuda-runtime{WHEEL_SPEC}", f"nvidia-cuda-crt{WHEEL_SPEC}"]
COMPILER_WHEELS = [
    f"{name}{WHEEL_SPEC}"
    for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
]
ALL_ARCHS = ("80", "86", "89", "90", "100", "120")


class ToolkitError(RuntimeError):
    """A compiler or header is missing. The message ends with the mend."""


def _toolkit_roots() -> list[Path]:
    """Toolkits of the machine first, then the folder that the wheels of this environment share."""
    roots: list[Path] = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            roots.append(Path(os.environ[variable]))
    on_path = shutil.which("nvcc")
    if on_path:
        roots.append(Path(on_path).resolve().parent.parent)
    roots.append(Path("/usr/local/cuda"))
    roots += wheel_roots()
    return roots


def wheel_roots(paths: list[str] | None = None) -> list[Path]:
    """`nvidia/cu13` in each folder of the import path (the CUDA 13 wheels unpack into one tree)."""
    found = (Path(entry) / "nvidia" / f"cu{CUDA_MAJOR}" for entry in (sys.path if paths is None else paths) if entry)
    return [root for root in found if root.is_dir()]


def nvcc_version(nvcc: Path) -> tuple[int, int] | None:
    """(major, minor) as nvcc reports it, or None when it does not run."""
    try:
        text = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"release (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def find_nvcc() -> Path | None:
    """nvcc of the fitting major version, or None. FOXHUNT_NVCC names one by hand."""
    chosen = os.environ.get("FOXHUNT_NVCC")
    if chosen:
        if nvcc_version(Path(chosen)) is None:
            raise ToolkitError(f"FOXHUNT_NVCC={chosen} does not run: point it to an nvcc {CUDA_MAJOR}.x or unset it")
        return Path(chosen)
    for root in _toolkit_roots():
        nvcc = root / "bin" / "nvcc"
        version = nvcc_version(nvcc) if nvcc.is_file() else None
        if version is not None and version[0] == CUDA_MAJOR:
            return nvcc
    return None


def require_nvcc() -> Path:
    nvcc = find_nvcc()
    if nvcc is None:
        wheels = " ".join(f"'{wheel}'" for wheel in COMPILER_WHEELS)
        raise ToolkitError(f"no nvcc {CUDA_MAJOR}.x found: install a CUDA toolkit, or pip install {wheels}")
    return nvcc


def find_cuda_include() -> Path | None:
    """The folder that holds cuda.h, or None. FOXHUNT_CUDA_INCLUDE names one by hand."""
    chosen = os.environ.get("FOXHUNT_CUDA_INCLUDE")
    candidates = [Path(chosen)] if chosen else []
    for root in _toolkit_roots():
        candidates += [root / "include", root / "targets" / "x86_64-linux" / "include"]
    for folder in candidates:
        header = folder / "cuda.h"
        if header.is_file() and re.search(
            rf"^#define CUDA_VERSION {CUDA_MAJOR}\d\d\d$", header.read_text(errors="replace"), re.MULTILINE
        ):
            return folder
    return None


def require_cuda_include() -> Path:
    include = find_cuda_include()
    if include is None:
        raise ToolkitError(
            f"no cuda.h of CUDA {CUDA_MAJOR} found: install a CUDA toolkit, or pip install '{HEADER_WHEELS[0]}'"
        )
    return include


def local_archs() -> list[str]:
    """Compute capabilities of this machine's GPUs, without a dot, found without loading libcuda; [] without a GPU."""
    if not Path("/proc/driver/nvidia").is_dir() and not Path("/dev/nvidiactl").exists():
        return []
    try:
        import pynvml
    except ImportError:
        return _archs_from_nvidia_smi()
    try:
        pynvml.nvmlInit()
        found = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(index))
            found.add(f"{major}{minor}")
        return sorted(found, key=int)
    except pynvml.NVMLError:
        return []


def _archs_from_nvidia_smi() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted({line.strip().replace(".", "") for line in text.splitlines() if line.strip()}, key=int)


def missing_wheels(compiler: bool) -> list[str]:
    """What pip must install so that this environment can build: cuda.h, and nvcc too when `compiler`."""
    if compiler and find_nvcc() is None:
        return COMPILER_WHEELS
    return HEADER_WHEELS[:1] if find_cuda_include() is None else []


def main() -> int:
    """Print the wheels that are missing, one a line: `python tools/toolkit.py missing [--compiler]`."""
    if sys.argv[1:2] != ["missing"]:
        print("usage: toolkit.py missing [--compiler]", file=sys.stderr)
        return 2
    print("\n".join(missing_wheels("--compiler" in sys.argv or bool(local_archs()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
