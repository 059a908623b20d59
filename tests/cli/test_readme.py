"""What the README shows works: the example runs, the commands exist, the picture is the graph."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import ROOT, environment

README = (ROOT / "README.md").read_text()


def test_the_embedding_example_runs_and_learns(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    lines = [line for line in code[1].splitlines() if line.strip() and not line.startswith(("import", "config"))]
    assert len(lines) <= 10
    done = subprocess.run([sys.executable, "-c", code[1]], cwd=tmp_path, env=environment(), text=True, capture_output=True,
                          timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    right = float(done.stdout.rsplit("right:", 1)[1])
    assert right > 0.9
    assert "Metrics(step=" in done.stdout


def test_every_command_it_names_exists():
    from foxhunt_rt.cli.app import COMMANDS

    named = set(re.findall(r"^\| `foxhunt-rt (\w+)", README, re.MULTILINE))
    assert {"train", "sample", "doctor", "graph", "verify"} <= named <= set(COMMANDS)


def test_the_files_it_points_to_exist():
    for target in re.findall(r'\]\(([\w./-]+)\)|src="([\w./-]+)"', README):
        name = target[0] or target[1]
        assert (ROOT / name).exists(), name


def test_the_picture_is_the_graph_of_the_smoke_profile(cli):
    done = cli("graph", "--svg")
    assert done.code == 0, done.err
    assert done.out.strip() == (ROOT / "docs/step-graph.svg").read_text().strip(), (
        "the step changed: foxhunt-rt graph --svg > docs/step-graph.svg"
    )


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_every_option_it_names_exists(page, cli):
    text = (ROOT / page).read_text()
    from foxhunt_rt.cli.app import COMMANDS

    shown = "".join(cli(command, "--help").out for command in COMMANDS)
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)):
        assert option in shown, option
