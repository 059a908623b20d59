"""Kernels as data: which image holds one (`images`), what its arguments are (`abi`), and how they are packed and checked
(`launch_args`). Never talks to the driver."""

from foxhunt_rt.kernels import abi, images
from foxhunt_rt.kernels.abi import Abi, Field, StructInfo
from foxhunt_rt.kernels.errors import AbiError, ArchitectureError, ArgumentError, KernelNotFound
from foxhunt_rt.kernels.images import Image, Images, KernelInfo
from foxhunt_rt.kernels.launch_args import BufferLike, PackedArgs, PointerUse, check_param_size, pack

__all__ = [
    "Abi",
    "AbiError",
    "ArchitectureError",
    "ArgumentError",
    "BufferLike",
    "Field",
    "Image",
    "Images",
    "KernelInfo",
    "KernelNotFound",
    "PackedArgs",
    "PointerUse",
    "StructInfo",
    "abi",
    "check_param_size",
    "images",
    "pack",
]
