"""A file that says which launches got which memory: what `foxhunt-rt sanitize` reads a report with.

Written by the process under the sanitizer when FOXHUNT_LAUNCH_MAP names a file: one line of JSON a launch, when a plan is built
and, of ungraphed users, when they launch. Without the variable nothing is written.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foxhunt_rt.graph.child import Child
    from foxhunt_rt.kernels import PackedArgs

VARIABLE = "FOXHUNT_LAUNCH_MAP"


@functools.cache
def wanted() -> bool:
    """Whether this process was asked for a map. Read once."""
    return bool(os.environ.get(VARIABLE))


def note_plan(plan: str, children: Iterable[Child]) -> None:
    """Adds the launches of a built plan."""
    for child in children:
        for op in child.ops:
            args = getattr(op, "args", None)
            if args is not None:
                note(f"{plan}/{child.name}", args)


def note(user: str, args: PackedArgs) -> None:
    """Adds one launch."""
    fields = {}
    for use in args.uses:
        allocation = getattr(use.buffer, "allocation", None)
        if allocation is not None:
            fields[use.field] = {"ptr": use.ptr, "nbytes": use.nbytes, "item": use.buffer.dtype.itemsize,
                                 "buffer": use.buffer.label,
                                 "start": allocation.ptr, "size": allocation.nbytes, "label": allocation.label}  # fmt: skip
    with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps({"user": user, "kernel": args.kernel, "args": fields}) + "\n")
