"""The package's version, for layers below the root."""

from __future__ import annotations

import sys

__all__ = ["package_version"]


def package_version() -> str:
    """``foxhunt_rt.__version__``. The root names every layer for type checkers, so lower ones may not import it by name."""
    return str(sys.modules["foxhunt_rt"].__version__)
