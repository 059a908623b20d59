"""Without the extras every command says in one line what to install: no traceback, no 'internal error'."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Hides a package from the import system, as if it were not installed.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
from foxhunt_rt.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize("package", ["pyarrow", "safetensors", "tomli_w"])
def test_a_missing_extra_is_named_with_its_install_command(package, tmp_path):
    code = HIDE.format(package=package, arguments=["train", "--synthetic", "--set", "train.epochs=1"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=100, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 4, done.stderr
    assert package.replace("_", "-") in last.replace("_", "-")
    assert "pip install 'foxhunt-rt[train]'" in last
    assert "internal error" not in done.stderr
