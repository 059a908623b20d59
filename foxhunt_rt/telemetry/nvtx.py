"""NVTX ranges by child, for Nsight Systems. Needs the package ``nvtx``: pip install 'foxhunt-rt[profile]'.

A replay is one launch, so no range of the host can mark its children; the ranges stand around the ungraphed launches of each
child, which `StepGraph.profile` runs. `foxhunt-rt profile --nvtx` does that: nsys profile -t cuda,nvtx foxhunt-rt profile --nvtx
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from foxhunt_rt._optional import require

DOMAIN = "foxhunt_rt"


def ranges() -> Callable[[str], AbstractContextManager[Any]]:
    """``ranges()(name)`` is a context manager that marks an NVTX range in the domain ``foxhunt_rt``.

    Raises
    ------
    foxhunt_rt._optional.MissingExtra
        The package nvtx is not installed.
    """
    annotate = require("nvtx", "an NVTX range").annotate

    def one(name: str) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = annotate(message=name, domain=DOMAIN)
        return found

    return one


__all__ = ["DOMAIN", "ranges"]
