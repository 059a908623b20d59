"""The plants still fit the tree, and the tests that they name exist. That each test notices its plant is what planting.py
shows; it takes minutes, so it is run by hand, and its result stands in docs/known-failures.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .plants import PLANTS, Plant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.name)
def test_a_plant_fits_the_tree(plant: Plant) -> None:
    for name, old, new in plant.edits:
        count = (ROOT / name).read_text().count(old)
        assert count >= 1, f"{name} no longer holds {old!r}: write the old behaviour into the new code, in plants.py"
        assert old != new
    for test in plant.tests:
        file, function = test.split("::")
        functions = {
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert function in functions, test


def test_the_page_names_every_plant_and_its_tests() -> None:
    page = (ROOT / "docs" / "known-failures.md").read_text()
    missing = [p.name for p in PLANTS if p.old not in page or any(test.split("::")[1] not in page for test in p.tests)]
    assert missing == []
