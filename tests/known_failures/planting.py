#!/usr/bin/env python3
"""Puts old behaviour back, one plant after the other, in a copy of the tree, and runs the tests that must notice it.

    python tests/known_failures/planting.py              every plant; ends with 1 when one passes unnoticed
    python tests/known_failures/planting.py K5 "K9: fl"  those of a row, or whose name begins so

The tree itself is not touched. A plant in a kernel takes a build of hostsim's images, so all of them take some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from plants import PLANTS, Plant

ROOT = Path(__file__).resolve().parents[2]


def copy_tree(target: Path) -> None:
    """Every file of the tree that git knows or would, and what was built."""
    names = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in names.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(tree), "FOXHUNT_CUDA_ARCHS": "", "FOXHUNT_DRIVER": "hostsim"}
    return subprocess.run([sys.executable, *command], cwd=tree, env=environment, text=True, capture_output=True)


def build(tree: Path) -> None:
    done = run(tree, "tools/build.py")
    if done.returncode:
        raise SystemExit(f"the copy does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def failure(output: str) -> str:
    """The part of pytest's report that says what went wrong, in one line."""
    lines = [line.strip() for line in re.findall(r"^E {3,}(.*)$", output, re.MULTILINE)]
    while len(lines) > 1 and lines[0] in ("AssertionError:", "AssertionError", ""):  # NumPy's begin with an empty line
        lines.pop(0)
    if lines and lines[0].startswith("Not equal"):
        lines = [" ".join(line for line in lines[:5] if line)]
    return lines[0] if lines else "no failure line"


def plant(tree: Path, p: Plant) -> list[tuple[str, str | None]]:
    """(test, first line of its failure, or None when it passed) with the old behaviour in place."""
    saved = {name: (tree / name).read_text() for name, _, _ in p.edits}
    try:
        for name, old, new in p.edits:
            text = (tree / name).read_text()
            if old not in text:
                raise SystemExit(f"{p.name}: {name} no longer holds {old!r}: write the old behaviour into the new code")
            (tree / name).write_text(text.replace(old, new, 1))
        if p.build:
            build(tree)
        found: list[tuple[str, str | None]] = []
        for test in p.tests:
            done = run(tree, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", test)
            if done.returncode not in (0, 1):
                raise SystemExit(f"{p.name}: {test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            found.append((test, failure(done.stdout) if done.returncode else None))
        return found
    finally:
        for name, text in saved.items():
            (tree / name).write_text(text)
        if p.build:
            build(tree)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Put old behaviour back and watch the tests fail.")
    parser.add_argument(
        "names", nargs="*", help="rows, such as K5, or beginnings of names, such as 'K9: fl'; none: all"
    )
    parser.add_argument("--in", dest="folder", type=Path, help="a copy made before, with its build; else a new one")
    options = parser.parse_args(argv)
    chosen = [
        p
        for p in PLANTS
        if not options.names or any(p.row == n or (":" in n and p.name.startswith(n)) for n in options.names)
    ]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="foxhunt-plants-") as made:
        tree = options.folder or Path(made)
        copy_tree(tree)
        build(tree)
        for p in chosen:
            print(p.name, flush=True)
            for test, seen in plant(tree, p):
                unnoticed += seen is None
                print(f"    {test}\n        {seen or 'PASSED: nobody noticed'}", flush=True)
    print(f"{len(chosen)} plants, {unnoticed} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
