"""Where NVIDIA's other shared libraries are: wheels, conda, CUDA_HOME or the system, as cuda-pathfinder finds them."""

from __future__ import annotations


def find_library(name: str) -> str | None:
    """Loads one of NVIDIA's libraries, for example ``"cublasLt"``, and returns its path; None when it is nowhere.

    Does not touch a driver. Not to be called inside a capture: loading takes seconds.
    """
    from cuda import pathfinder

    try:
        return str(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
    except pathfinder.DynamicLibNotFoundError:
        return None
