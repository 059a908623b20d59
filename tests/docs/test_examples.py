"""Every example runs and prints what its docstring says; one that cannot run here says so, and a wrong argument, in one line."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .blocks import agrees

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {"vector_training.py"}  # imported by others
EXAMPLES = sorted(p for p in (ROOT / "examples").rglob("*.py") if p.name not in LIBRARIES)
#: Shorter than what they are for, which tests/dqn/test_learning.py holds them to.
SHORT = {"cartpole.py": ["--steps", "60"], "acrobot.py": ["--steps", "60"]}
NEEDS = {"cartpole.py": "gymnasium", "acrobot.py": "gymnasium", "jax_buffers.py": "jax"}


def run(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, example, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
                          capture_output=True, timeout=110, check=False)  # fmt: skip


def shown(example: Path) -> str:
    """What the docstring says that it prints."""
    doc = ast.get_docstring(ast.parse(example.read_text())) or ""
    assert f"python {example.relative_to(ROOT)}" in doc, "say how it is started"
    return textwrap.dedent("\n".join(row for row in doc.splitlines() if row.startswith("    ")))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_it_prints_what_it_says(example: Path, driver: str) -> None:
    if example.name == "torch_child.py" and driver == "hostsim":
        done = run(example)
        assert (
            done.returncode == 1
            and done.stderr == "this example needs a GPU: hostsim runs our kernels, not PyTorch's\n"
        )
        return
    if (needed := NEEDS.get(example.name)) is not None:
        pytest.importorskip(needed)
    if "kernels.compile" in example.read_text() and shutil.which("g++" if driver == "hostsim" else "nvcc") is None:
        pytest.skip("no compiler for the example's kernels")
    expected, done = shown(example), run(example, *SHORT.get(example.name, []))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert expected and agrees(expected, done.stdout), f"says\n{expected}\nand prints\n{done.stdout}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_a_wrong_argument_is_one_line(example: Path) -> None:
    if (needed := NEEDS.get(example.name)) is not None:
        pytest.importorskip(needed)
    done = run(example, "--no-such-option")
    assert done.returncode != 0 and done.stderr.count("\n") == 1 and example.name in done.stderr, done.stderr
