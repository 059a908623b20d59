#!/usr/bin/env python3
"""Writes docs/legality.md from the docstrings of the public interface, so that the page cannot disagree with them.

python tools/legality.py               rewrites the page

A docstring of something that calls the driver has one sentence of this form, where each answer may go on after a comma:

    In a capture: refused. Synchronizes: yes. Allocates: no.

Silence means that no driver call is made, so that it is legal anywhere. tests/api/test_legality.py runs every entry and
compares; this module finds the entries and reads the sentences.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "legality.md"

#: Packages whose ``__all__`` is the public interface of the runtime and of what embeds into other trainers.
PACKAGES = ("driver", "kernels", "graph", "replay", "interop", "testing", "dqn")
#: Methods with underscores that are protocols of Python or of other libraries.
PROTOCOLS = (
    "__enter__",
    "__getitem__",
    "__dlpack__",
    "__dlpack_device__",
    "__cuda_array_interface__",
    "__cuda_stream__",
)
SENTENCE = re.compile(r"In a capture: (?P<capture>[^.]+)\. Synchronizes: (?P<synchronizes>[^.]+)\. "
                      r"Allocates: (?P<allocates>[^.]+)\.")  # fmt: skip

INTRODUCTION = """\
# What every public method does to the driver

Three questions, answered for every public function, method and property of the runtime and of what embeds it. The answers stand
in the docstrings, from which `tools/legality.py` writes this page; `tests/api/test_legality.py` runs every entry on hostsim,
whose trace of driver calls must agree with them.

* **In a capture**: what happens while the runtime's stream is capturing. *refused*: it raises `CaptureError`, before the driver
  sees the call, or, as `IllegalInCapture`, because the driver refuses it; then that capture gives no graph. Either way the next
  capture works. *recorded*: it becomes part of the captured graph. *legal*: it leaves the capture alone. Step graphs are captured
  within `StepPlan.build`, so this is for those who capture by themselves.
* **Synchronizes**: whether the host waits for the device.
* **Allocates**: whether memory, modules, streams, events, graphs or executables are made, changed or given back, or attributes
  set. Nothing of that belongs in a loop of replays.
* *may* says when.

What is not listed asks the driver at most for what it knows already (properties, the nodes of a graph): it is legal anywhere,
waits for nothing and makes nothing. Objects of one runtime may be used from any thread, by one at a time.
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One public thing. ``facts`` is None where its docstring is silent; ``doc`` is the docstring, ``target`` the object."""

    package: str
    name: str
    target: Any
    doc: str
    facts: dict[str, str] | None


def read(doc: str) -> dict[str, str] | None:
    """The three answers of a docstring, or None."""
    found = SENTENCE.search(" ".join(doc.split()))
    return found.groupdict() if found else None


def _public(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        if name.startswith("_") and name not in PROTOCOLS:
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield name, member.__func__
        elif isinstance(member, property):
            yield name, member.fget
        elif inspect.isfunction(member):
            yield name, member


def _has_constructor(cls: type) -> bool:
    return inspect.isfunction(vars(cls).get("__init__")) and not dataclasses.is_dataclass(cls)


def entries() -> list[Entry]:
    """The public interface, in the order of packages and of ``__all__``."""
    found: list[Entry] = []
    seen: set[int] = set()

    def add(package: str, name: str, target: Any) -> None:
        doc = inspect.getdoc(target) or ""
        found.append(Entry(package, name, target, doc, read(doc)))

    for package in PACKAGES:
        module = importlib.import_module(f"foxhunt_rt.{package}")
        for name in sorted(module.__all__, key=str.lower):
            target = getattr(module, name)
            if id(target) in seen:
                continue
            seen.add(id(target))
            if inspect.isfunction(target):
                add(package, f"{package}.{name}", target)
            elif inspect.isclass(target) and not issubclass(target, (BaseException, enum.Enum)):
                if getattr(target, "_is_protocol", False):
                    continue
                if _has_constructor(target):
                    add(package, f"{name}()", target)
                for member, function in _public(target):
                    add(package, f"{name}.{member}", function)
    return found


def page() -> str:
    """The whole page as Markdown."""
    lines, package = [INTRODUCTION], ""
    for entry in entries():
        if entry.facts is None:
            continue
        if entry.package != package:
            package = entry.package
            lines += [
                f"\n## foxhunt_rt.{package}\n",
                "| | in a capture | synchronizes | allocates |",
                "| --- | --- | --- | --- |",
            ]
        lines.append(f"| `{entry.name}` | {' | '.join(entry.facts.values())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
