"""Known failure K19: dead kernels and unused handles, left by a rewrite.

A kernel is alive when its name stands as a string of its own in the package or the tools (kernels are launched by name), or,
for those of cuda_src/testing, in the tests. Nothing else holds a handle: the module pool loads what a child launches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from foxhunt_rt.kernels import images

ROOT = Path(__file__).resolve().parents[2]
KERNEL = re.compile(r"^FX_KERNEL\w*\((\w+)", re.MULTILINE)
STRUCT = re.compile(r"^(?:\}\s*|typedef \w+_args )(\w+)_args;", re.MULTILINE)  # an alias is one too


def declared() -> dict[str, Path]:
    """Kernels of the sources, and the files they stand in."""
    return {
        name: path for path in sorted((ROOT / "cuda_src").rglob("*.cu")) for name in KERNEL.findall(path.read_text())
    }


def strings(paths: Iterable[Path]) -> set[str]:
    """Every string and bytes constant of Python files: comments do not count, nor do names inside longer strings."""
    constants = [
        node.value for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    ]
    return {v if isinstance(v, str) else v.decode(errors="replace") for v in constants if isinstance(v, (str, bytes))}


def dead(kernels: dict[str, Path]) -> list[str]:
    """Kernels that nothing launches. Those of cuda_src/testing may stand in a script that is itself a string of a test."""
    product = strings([*(ROOT / "foxhunt_rt").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
    tests = "\n".join(strings(p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__).resolve()))
    return [name for name, path in kernels.items() if name not in product
            and not (path.parent.name == "testing" and re.search(rf"\b{name}\b", tests))]  # fmt: skip


def test_every_kernel_is_launched_by_the_package_a_tool_or_a_test() -> None:
    kernels = declared()
    assert len(kernels) > 20
    assert dead(kernels) == [], "remove these kernels or launch them"
    assert dead({"old_saxpy": ROOT / "cuda_src/optim/old.cu"}) == ["old_saxpy"]
    assert dead({"reduce_probe": ROOT / "cuda_src/optim/old.cu"}) == ["reduce_probe"], (
        "a test alone does not keep a kernel alive"
    )


def test_every_argument_struct_has_its_kernel() -> None:
    structs = {
        name: path.name for path in (ROOT / "cuda_src" / "abi").glob("*.h") for name in STRUCT.findall(path.read_text())
    }
    kernels = declared()
    assert {name: file for name, file in structs.items() if name not in kernels} == {}
    assert [name for name in kernels if name not in structs] == []


def test_every_kernel_that_was_built_is_in_the_sources() -> None:
    """An image that a removed kernel left behind."""
    assert sorted(info.name for info in images.kernels().values() if info.name not in declared()) == []
