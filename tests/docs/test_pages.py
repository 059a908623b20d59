"""Every example on every page runs as it stands there, in a fresh process a page, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import agrees, indented_python, read

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = Path(__file__).with_name("run_page.py")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python` and `foxhunt-rt` of this environment, whether or not the package is installed."""
    folder = tmp_path_factory.mktemp("bin")
    for program, command in (("python", ""), ("python3", ""), ("foxhunt-rt", "-m foxhunt_rt")):
        path = folder / program
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if read(p)], ids=name)
def test_examples_run(page: Path, tmp_path: Path, programs: Path, driver: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FOXHUNT_HOSTSIM"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
                    "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
                    "FOXHUNT_DRIVER": driver, "FOXHUNT_CACHE": str(tmp_path / "cache")}  # fmt: skip
    needs = ["gpu"] if driver == "cuda" else []
    done = subprocess.run([sys.executable, str(RUN), str(page), *needs], cwd=tmp_path, env=environment, text=True,
                          capture_output=True, timeout=110, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_is_fenced(page: Path) -> None:
    assert indented_python(page) == [], "fence these with ```python, so that they run"


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    for text in (
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nraise KeyError\n```\n",
        "```sh\nfalse\n```\n",
    ):
        (tmp_path / "page.md").write_text(text)
        done = subprocess.run([sys.executable, str(RUN), "page.md"], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 1, text
    (tmp_path / "page.md").write_text("```\nx\n```\n")
    with pytest.raises(ValueError, match="no language"):
        read(tmp_path / "page.md")
    assert agrees("a ... c\n", "a b c \n") and not agrees("a ... c", "a b d")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    shown = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", shown):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [p.name for p in (ROOT / "docs").glob("*.md") if p.name not in ("README.md", "findings.md")]
    assert [p for p in pages if f"({p})" not in index] == []
