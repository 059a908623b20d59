"""foxhunt-rt: a CUDA driver-API runtime in which a whole training step is one graph launch, and a DQN trainer on it.

Importing initializes nothing: the driver is loaded when the first `Runtime` is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from foxhunt_rt import dqn, interop, market
    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.kernels import abi

_LAZY = {"Runtime": ("foxhunt_rt.graph", "Runtime"), "StepPlan": ("foxhunt_rt.graph", "StepPlan"),
         "abi": ("foxhunt_rt.kernels.abi", None), "dqn": ("foxhunt_rt.dqn", None),
         "market": ("foxhunt_rt.market", None), "config": ("foxhunt_rt.config", None),
         "interop": ("foxhunt_rt.interop", None)}  # fmt: skip

__all__ = ["Runtime", "__version__", "abi", "dqn", "interop", "market"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'foxhunt_rt' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)
