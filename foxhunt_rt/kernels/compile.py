"""Compiles kernels of your own for the device at hand: nvcc for a GPU, g++ for hostsim. Nothing of the package needs it.

The headers that the package's own kernels use (``lib/kernel.h`` and the rest of ``cuda_src/lib``) stand in the package, so a
source that includes them compiles anywhere the package is installed. The rules of the ABI header: docs/architecture.md.
"""

from __future__ import annotations

import atexit
import json
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from foxhunt_rt.kernels.abi import NATIVE
from foxhunt_rt.kernels.errors import CompileError

# FX_KERNEL(name), FX_KERNEL_BOUNDS(name, threads) and FX_KERNEL_ANYBLOCK(name), at the start of a line.
_KERNEL = re.compile(r"^FX_KERNEL(?P<form>[A-Z_]*)\((?P<name>\w+)", re.MULTILINE)

# As the package's own images are built: cmake/hostsim.cmake says why each flag.
_HOST_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-math-errno",
               "-fno-trapping-math", "-fno-exceptions", "-Wno-unknown-pragmas"]  # fmt: skip
_X86_FLAGS = {
    "host": ["-march=x86-64-v3", "-mtls-dialect=gnu"],
    "host-baseline": ["-march=x86-64", "-mtls-dialect=gnu"],
}


def scan(source: str, image: str) -> dict[str, dict[str, str]]:
    """The kernels that a source defines, as ``kernels.json`` lists them: image, argument struct, form."""
    return {
        found["name"]: {"image": image, "args": f"{found['name']}_args",
                        "form": "anyblock" if "ANYBLOCK" in found["form"] else "threads"}
        for found in _KERNEL.finditer(source)
    }  # fmt: skip


def compile(source: str | Path, architecture: str, *, header: str | Path | None = None,
            folder: str | Path | None = None) -> Path:  # fmt: skip
    """Compiles one source into a folder that `foxhunt_rt.kernels.add` takes.

    Parameters
    ----------
    source : path
        A ``.cu`` file. It includes ``lib/kernel.h``, ``abi/types.h``, then ``abi/<stem>.h``.
    architecture : str
        ``rt.device.architecture``: ``sm_90``, or ``host`` for hostsim.
    header : path, optional
        The header with its argument structs. Default: ``<stem>.h`` beside it.
    folder : path, optional
        Where to put header, index and image; made if it is not there. Default: a temporary folder that goes with the process.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    CompileError
        No compiler, no kernel in the source, or it does not compile: the compiler's first error stands in the message.

    Notes
    -----
    Touches no device. Some seconds.
    """
    path = Path(source)
    abi = Path(header) if header is not None else path.with_suffix(".h")
    for needed in (path, abi):
        if not needed.is_file():
            raise CompileError(
                f"{needed} is not there: give the path of a .cu file, and the header of its argument structs"
            )
    index = scan(path.read_text(), path.stem)
    if not index:
        raise CompileError(
            f"{path} holds no kernel: mark each FX_KERNEL(name) or FX_KERNEL_ANYBLOCK(name) at the start of a line"
        )
    target = Path(folder) if folder is not None else _temporary()
    output = target / architecture / (path.stem + (".so" if architecture.startswith("host") else ".cubin"))
    for made in (target / "abi", output.parent):
        made.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(abi, target / "abi" / f"{path.stem}.h")
    _run(_command(architecture, path, output, [NATIVE / "include", NATIVE, target]), path)
    (target / "kernels.json").write_text(json.dumps(index, indent=1))
    return target


def _command(architecture: str, source: Path, output: Path, include: list[Path]) -> list[str]:
    paths = [f"-I{folder}" for folder in include]
    if architecture.startswith("host"):
        march = _X86_FLAGS[architecture] if platform.machine() in ("x86_64", "AMD64") else []
        # --no-as-needed: threadIdx and the barriers come from the driver library, found by its SONAME once it is loaded
        link = [f"-L{NATIVE}", "-Wl,--no-as-needed", "-l:libfoxhunt_hostsim.so"]
        return ["g++", *_HOST_FLAGS, *march, *paths, "-x", "c++", str(source), "-o", str(output), *link]
    return [
        "nvcc",
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-cubin",
        f"-arch={architecture}",
        *paths,
        str(source),
        "-o",
        str(output),
    ]


def _run(command: list[str], source: Path) -> None:
    if shutil.which(command[0]) is None:
        need = (
            "g++ (a C++20 compiler)"
            if command[0] == "g++"
            else "nvcc (the CUDA toolkit, or pip install nvidia-cuda-nvcc)"
        )
        raise CompileError(f"{command[0]} is not on PATH, and {source.name} needs it: install {need}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        )
        raise CompileError(f"{source.name} does not compile: {lines[0].strip()}")


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="foxhunt-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


__all__ = ["compile", "scan"]
