"""docs/support.md says what the code's tables and the package's metadata say."""

from __future__ import annotations

import re
from pathlib import Path

from foxhunt_rt.driver.features import FEATURES, MACHINES, OLDEST_CAPABILITY, OLDEST_DRIVER, version_text

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "support.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


def test_versions_are_those_of_the_metadata() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    versions = {row[0]: row[1] for row in ROWS}
    assert versions["cuda-python"] == re.search(r'"cuda-python([^"]+)"', project)[1]  # type: ignore[index]
    assert versions["Python"] == re.search(r'requires-python = "([^"]+)"', project)[1]  # type: ignore[index]
    assert versions["driver"] == f"CUDA {version_text(OLDEST_DRIVER)} or newer"
    assert versions["GPU"].startswith(f"compute capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} or newer")
    assert versions["processor, hostsim"].startswith(", ".join(MACHINES) + ":")


def test_features_are_those_of_the_code() -> None:
    found = [row for row in ROWS if row[0].startswith("`")]
    assert found == [[f"`{f.name}`", version_text(f.since), f.use, f.fallback] for f in FEATURES]
