"""The kernel ABI as Python sees it: struct layouts as NumPy dtypes, fields with their annotations, constants.

The one source is the headers that the kernels were compiled with (installed beside the images); nothing is typed twice.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from foxhunt_rt._names import choose
from foxhunt_rt.kernels.errors import AbiError
from foxhunt_rt.kernels.header import Field, HeaderError, StructInfo, read_headers

__all__ = ["Abi", "Field", "StructInfo", "bf16", "constant", "dtype", "element_dtype", "struct"]

NATIVE = Path(__file__).resolve().parent.parent / "_native"

#: NumPy has no bfloat16: buffers of it carry the bits under this dtype (or `ml_dtypes.bfloat16`, where installed).
bf16 = np.dtype([("bf16", np.uint16)])

_SCALARS: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    **{f"{kind}{bits}_t": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
_ELEMENTS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": bf16,
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "i64": np.dtype(np.int64),
    "u64": np.dtype(np.uint64),
    "u8": np.dtype(np.uint8),
}


class Abi:
    """The structs and constants of one folder of headers, and of further ones that build on it.

    Parameters
    ----------
    folder : Path
        Holds ``types.h`` and the other headers.
    *more : Path
        Folders whose headers use its structs.

    Raises
    ------
    AbiError
        When a header breaks a rule; the message names file and line.
    """

    def __init__(self, folder: Path, *more: Path) -> None:
        try:
            headers = read_headers(folder, *more)
        except HeaderError as error:
            raise AbiError(str(error)) from None
        self.structs = headers.structs
        self.constants = headers.constants
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def struct(self, name: str) -> StructInfo:
        """The struct's size and fields. Raises AbiError when there is none of that name."""
        if name not in self.structs:
            raise AbiError(f"no struct {name} in the ABI headers{_near(name, self.structs)}")
        return self.structs[name]

    def constant(self, name: str) -> int:
        """The value of a ``#define``. Raises AbiError when there is none of that name."""
        if name not in self.constants:
            raise AbiError(f"no constant {name} in the ABI headers{_near(name, self.constants)}")
        return self.constants[name]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The struct as a NumPy structured dtype with C's exact offsets; pointers are uint64.

        Raises AbiError when there is no struct of that name.
        """
        if name not in self._dtypes:
            info = self.struct(name)
            self._dtypes[name] = np.dtype(
                {
                    "names": [field.name for field in info.fields],
                    "formats": [self._field_dtype(field) for field in info.fields],
                    "offsets": [field.offset for field in info.fields],
                    "itemsize": info.size,
                }
            )
        return self._dtypes[name]

    def _field_dtype(self, field: Field) -> np.dtype[Any]:
        if field.is_pointer:
            return np.dtype(np.uint64)
        base = _SCALARS[field.ctype] if field.ctype in _SCALARS else self.dtype(field.ctype)
        return np.dtype((base, (field.length,))) if field.length else base

    def element_dtype(self, field: Field) -> np.dtype[Any]:
        """The dtype of one element behind a pointer field."""
        return _ELEMENTS[field.element] if field.element in _ELEMENTS else self.dtype(field.element)

    def dtype_name(self, dtype: np.dtype[Any]) -> str:
        """How to name a dtype to a person: a struct by its C name, anything else as NumPy does."""
        if dtype.names is not None:
            for name in self.structs:
                if self.dtype(name) == dtype:
                    return name
        return "bf16" if dtype == bf16 else str(dtype)


def _near(name: str, known: dict[str, Any]) -> str:
    hint = choose(name, known)
    return f": {hint}" if hint.endswith("?") else ": see cuda_src/abi"


_added: list[Path] = []


@functools.cache
def default() -> Abi:
    """The ABI of the kernels this package was built with, and of those added since (`foxhunt_rt.kernels.add`)."""
    return Abi(NATIVE / "abi", *_added)


def add(folder: Path) -> None:
    """Adds a folder of headers to the default. One that breaks a rule raises AbiError and adds nothing."""
    Abi(NATIVE / "abi", *_added, folder)
    _added.append(folder)
    default.cache_clear()


def struct(name: str) -> StructInfo:
    """`Abi.struct` of the package's kernels."""
    return default().struct(name)


def dtype(name: str) -> np.dtype[Any]:
    """`Abi.dtype` of the package's kernels."""
    return default().dtype(name)


def element_dtype(field: Field) -> np.dtype[Any]:
    """`Abi.element_dtype` of the package's kernels."""
    return default().element_dtype(field)


def constant(name: str) -> int:
    """`Abi.constant` of the package's kernels."""
    return default().constant(name)
