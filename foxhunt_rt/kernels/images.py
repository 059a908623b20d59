"""Finds the compiled image that holds a kernel and fits a device.

``_native`` holds ``host/<stem>.so`` (and perhaps ``host-baseline/``) for hostsim, ``sm_<cc>/<stem>.cubin``, and
``ptx_<cc>/<stem>.ptx``. A cubin runs on devices of its major compute capability and the same or a higher minor one;
PTX is compiled by the driver for any device at least as new ("Application Compatibility" in the CUDA C++ Programming
Guide). Neither synchronizes nor calls the driver.
"""

from __future__ import annotations

import functools
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from foxhunt_rt._names import choose
from foxhunt_rt.kernels.abi import NATIVE
from foxhunt_rt.kernels.errors import ArchitectureError, KernelNotFound

__all__ = ["Image", "Images", "KernelInfo", "add", "find", "kernel", "kernels"]

# What x86-64-v3 asks for beyond what every x86-64 has, as /proc/cpuinfo spells it (abm is lzcnt).
_V3 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})


@dataclass(frozen=True)
class KernelInfo:
    """A kernel: the stem of its image, its argument struct, and its form ("anyblock" or "threads")."""

    name: str
    image: str
    args: str
    form: str


@dataclass(frozen=True)
class Image:
    """One image on disk. ``arch`` is ``host``, ``host-baseline``, ``sm_90`` or ``ptx_80``."""

    stem: str
    arch: str
    path: Path

    def read(self) -> bytes:
        """The bytes for `cuModuleLoadData`: PTX text ends with the NUL that the driver wants."""
        data = self.path.read_bytes()
        return data + b"\0" if self.path.suffix == ".ptx" else data


class Images:
    """The images below one folder.

    Parameters
    ----------
    folder : Path
        Laid out as ``foxhunt_rt/_native``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / "kernels.json"
        if not index.is_file():
            raise KernelNotFound(f"{folder} holds no kernels: build them with `python tools/build.py`")
        self.kernels = {name: KernelInfo(name, **entry) for name, entry in json.loads(index.read_text()).items()}

    def kernel(self, name: str) -> KernelInfo:
        """Raises KernelNotFound, with the nearest name, when there is no such kernel."""
        if name not in self.kernels:
            hint = choose(name, self.kernels)
            mend = hint if hint.endswith("?") else "build it with `python tools/build.py`"
            raise KernelNotFound(f"no kernel {name}: {mend}")
        return self.kernels[name]

    def available(self, stem: str) -> tuple[str, ...]:
        """The architectures that an image was built for."""
        return tuple(sorted(path.parent.name for path in self.folder.glob(f"*/{stem}.*") if path.parent.name != "abi"))

    def find(self, kernel: str, arch: str) -> Image:
        """The best image of a kernel for a device.

        Parameters
        ----------
        kernel : str
        arch : str
            ``host`` for hostsim, else the device's compute capability as ``sm_90``.

        Raises
        ------
        KernelNotFound, ArchitectureError
        """
        stem = self.kernel(kernel).image
        available = self.available(stem)
        chosen = _host(available) if arch == "host" else _device(available, arch)
        if chosen is None:
            raise ArchitectureError(kernel, arch, available)
        suffix = {"h": "so", "s": "cubin", "p": "ptx"}[chosen[0]]
        return Image(stem, chosen, self.folder / chosen / f"{stem}.{suffix}")


def _host(available: tuple[str, ...]) -> str | None:
    wanted = "host" if runs_host_images() else "host-baseline"
    return wanted if wanted in available else None


def _capability(arch: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(?:sm|ptx)_(\d+)(\d)", arch)
    return (int(match[1]), int(match[2])) if match else None


def _device(available: tuple[str, ...], arch: str) -> str | None:
    device = _capability(arch)
    if device is None:
        return None
    fitting: list[tuple[bool, tuple[int, int], str]] = []
    for name in available:
        image = _capability(name)
        if image is None:
            continue
        is_cubin = name.startswith("sm_")
        if (image[0] == device[0] and image <= device) if is_cubin else image <= device:
            fitting.append((is_cubin, image, name))
    return max(fitting)[2] if fitting else None  # a cubin before PTX, the nearest of each


@functools.cache
def runs_host_images() -> bool:
    """Whether this processor runs x86-64-v3 code (other processors have one build only)."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return flags is not None and _V3.issubset(flags[1].split())


@functools.cache
def default() -> Images:
    """The images this package was built with."""
    return Images(NATIVE)


_added: list[Images] = []


def add(folder: Path) -> list[str]:
    """Adds the images of a folder, and returns the names of their kernels. Its names must be new, those of images too.

    Raises
    ------
    KernelNotFound
        The folder holds no ``kernels.json``, or a name of it is taken.
    """
    images = Images(folder)
    stems = {info.image for info in kernels().values()}
    for name, info in images.kernels.items():
        if name in kernels() or info.image in stems:
            raise KernelNotFound(
                f"{folder}: kernel {name} or its image {info.image} has the name of another: rename it"
            )
    _added.append(images)
    return list(images.kernels)


def _holder(name: str) -> Images:
    return next((images for images in _added if name in images.kernels), default())


def kernel(name: str) -> KernelInfo:
    """`Images.kernel` of the package and of what was added."""
    return _holder(name).kernel(name)


def kernels() -> dict[str, KernelInfo]:
    """Every kernel of the package by name, and of what was added."""
    found = dict(default().kernels)
    for images in _added:
        found |= images.kernels
    return found


def find(kernel: str, arch: str) -> Image:
    """`Images.find` of the package and of what was added."""
    return _holder(kernel).find(kernel, arch)
