"""How to answer a name that does not exist: with the one that was probably meant, or with those that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def choose(name: str, known: Iterable[str], what: str = "known") -> str:
    """``did you mean adam?``, or, where nothing is near, ``known: adam, ddqn`` under the heading `what`."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"{what}: {', '.join(names) or 'none yet'}"


__all__ = ["choose"]
