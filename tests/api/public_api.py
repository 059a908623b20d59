"""The public names and signatures as text, one a line: python tests/api/public_api.py writes public_api.txt.

A change of the file is a change of the public interface (docs/versioning.md): look at it before you commit it.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    "foxhunt_rt",
    *(f"foxhunt_rt.{n}" for n in ("driver", "kernels", "graph", "replay", "interop", "testing", "dqn")),
)


def _signature(function: Any) -> str:
    text = str(inspect.signature(function))
    text = re.sub(r"frozenset\(\{.*?\}\)", "frozenset(...)", text)  # in another order in each process
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _members(cls: type) -> Iterator[str]:
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if not field.name.startswith("_"):
                yield f"{field.name}: {field.type}"
    for name, member in sorted(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield f"{name}{_signature(member.__func__)} [{type(member).__name__}]"
        elif isinstance(member, property):
            yield f"{name} -> {inspect.signature(member.fget).return_annotation} [property]"  # type: ignore[arg-type]
        elif inspect.isfunction(member):
            yield f"{name}{_signature(member)}"


def lines() -> Iterator[str]:
    """The interface."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            target = getattr(module, name)
            home = getattr(target, "__module__", "")
            if inspect.isclass(target):
                bases = ", ".join(b.__name__ for b in target.__bases__ if b is not object)
                yield f"{package}.{name} [class{f' of {bases}' if bases else ''}]"
                if package == "foxhunt_rt" or not home.startswith(package):
                    continue  # listed where it lives
                if issubclass(target, enum.Enum):
                    yield from (f"{package}.{name}.{m.name} = {m.value!r}" for m in target)
                    continue
                yield from (f"{package}.{name}.{member}" for member in _members(target))
            elif inspect.isfunction(target):
                yield f"{package}.{name}{_signature(target)}"
            else:
                yield f"{package}.{name} [{type(target).__name__}]"


def text() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
