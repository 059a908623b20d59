"""The public interface: a change is noticed, every name is documented, types are shipped."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from pathlib import Path

import legality
import pytest

from . import public_api

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {entry.name: entry for entry in legality.entries()}


@pytest.mark.skipif(sys.version_info[:2] < (3, 11), reason="signatures are written as Python 3.11 and newer print them")
def test_a_change_of_the_interface_is_made_on_purpose() -> None:
    difference = difflib.unified_diff(public_api.PAGE.read_text().splitlines(), public_api.text().splitlines(), "reviewed", "now",
                                      lineterm="", n=0)  # fmt: skip
    assert "\n".join(difference) == "", "docs/versioning.md; if it is meant: python tests/api/public_api.py"


@pytest.mark.parametrize("package", public_api.PACKAGES)
def test_all_is_complete(package: str) -> None:
    """What a package's __init__ imports from its own modules without an underscore is public, and says so."""
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    own = {name for name, value in vars(module).items()
           if not name.startswith("_") and getattr(value, "__module__", "").startswith("foxhunt_rt")
           and (inspect.isclass(value) or inspect.isfunction(value))}  # fmt: skip
    assert own - set(module.__all__) == set()
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("name", ENTRIES)
def test_it_has_a_docstring_that_names_its_parameters(name: str) -> None:
    entry = ENTRIES[name]
    member = name.rpartition(".")[2]
    plain = member in ("__enter__", "__getitem__") or member.startswith("__")
    assert entry.doc or plain, "no docstring"
    function = entry.target.__init__ if inspect.isclass(entry.target) else entry.target
    names = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    if "Parameters\n-----" not in entry.doc:
        unnamed = [p for p in names if not re.search(rf"\b{p}\b", entry.doc)]
        assert len(unnamed) < 3 or re.search(r"`\w+\.\w+`", entry.doc), (
            f"it names neither {unnamed} nor where they are explained"
        )
        return
    section = (
        entry.doc.split("Parameters\n-----")[1]
        .split("\n\nRaises\n")[0]
        .split("\n\nReturns\n")[0]
        .split("\n\nNotes\n")[0]
    )
    for parameter in names:
        assert parameter in section, f"its section Parameters leaves out {parameter}"


def test_types_are_shipped() -> None:
    assert (ROOT / "foxhunt_rt" / "py.typed").is_file()
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (
        "py.typed" in project["tool"]["setuptools"]["package-data"]["foxhunt_rt"]
    )  # in the wheel: tests/build/test_package.py
