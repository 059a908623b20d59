"""Kernels as data: which image holds one (`images`), what its arguments are (`abi`), and how they are packed and checked
(`launch_args`). Never talks to the driver."""

from pathlib import Path

from foxhunt_rt.kernels import abi, images
from foxhunt_rt.kernels.abi import Abi, Field, StructInfo
from foxhunt_rt.kernels.compile import compile
from foxhunt_rt.kernels.errors import AbiError, ArchitectureError, ArgumentError, CompileError, KernelNotFound
from foxhunt_rt.kernels.images import Image, Images, KernelInfo
from foxhunt_rt.kernels.launch_args import BufferLike, PackedArgs, PointerUse, check_param_size, pack

__all__ = [
    "Abi",
    "AbiError",
    "ArchitectureError",
    "ArgumentError",
    "BufferLike",
    "CompileError",
    "Field",
    "Image",
    "Images",
    "KernelInfo",
    "KernelNotFound",
    "PackedArgs",
    "PointerUse",
    "StructInfo",
    "abi",
    "add",
    "check_param_size",
    "compile",
    "images",
    "pack",
]


def add(folder: str | Path) -> list[str]:
    """Adds kernels of your own to those of the package; returns their names.

    Parameters
    ----------
    folder : path
        As ``foxhunt_rt/_native``: ``kernels.json``, ``abi/*.h`` with a struct ``<kernel>_args`` each, and the images in
        ``host/``, ``sm_90/`` or ``ptx_80/``. `compile` makes one.

    Raises
    ------
    KernelNotFound, AbiError
        A name is taken, or a header breaks a rule of the ABI; nothing was added.
    """
    path = Path(folder)
    if any(added.folder == path for added in images._added):
        return list(images.Images(path).kernels)
    images.Images(path)  # before the headers, so that a folder without an index is named as such
    abi.add(path / "abi")
    try:
        return images.add(path)
    except BaseException:
        abi._added.pop()
        abi.default.cache_clear()
        raise
