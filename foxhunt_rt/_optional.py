"""Packages that an extra brings: where one is missing, one line says which and how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from foxhunt_rt.driver.errors import FoxhuntError

#: Import name -> extra, for the modules that the package itself asks for.
EXTRAS = {
    "pyarrow": "train",
    "rich": "train",
    "safetensors": "train",
    "tomli": "train",
    "tomli_w": "train",
    "nvidia.cublas": "gpu",
    "nvtx": "profile",
    "jax": "test",
    "optax": "test",
    "rlax": "test",
    "gymnasium": "test",
    "pytest": "test",
}


class MissingExtra(FoxhuntError, ImportError):
    """An optional package is not installed."""


def require(module: str, purpose: str = "") -> Any:
    """Import an optional module.

    Parameters
    ----------
    module : str
        As in an import statement; its top-level package is looked up in `EXTRAS`.
    purpose : str, optional
        What needs it, for the message.

    Raises
    ------
    MissingExtra
        When it is not installed. An error inside an installed package is passed on as it is.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if not (module == missing or module.startswith(missing + ".")):
            raise  # the module is there, something that it needs itself is not
        package = module.partition(".")[0]
        extra = EXTRAS.get(module) or EXTRAS.get(package)
        what = f"foxhunt-rt[{extra}]" if extra else package
        needs = f"{purpose} needs " if purpose else ""
        raise MissingExtra(f"{needs}{package}, which is not installed: pip install '{what}'") from None


def as_missing(error: BaseException) -> MissingExtra | None:
    """The `MissingExtra` that a plain import statement's ModuleNotFoundError stands for; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or isinstance(error, MissingExtra):
        return None
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(error.name or "") or EXTRAS.get(package)
    return MissingExtra(f"{package} is not installed: pip install 'foxhunt-rt[{extra}]'") if extra else None
