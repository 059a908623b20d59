#!/usr/bin/env python3
"""Writes docs/metrics.md from the table of expectations (foxhunt_rt/dqn/expectations.py); a test compares."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from foxhunt_rt.dqn.expectations import markdown  # noqa: E402

HEAD = """# Metrics and what to expect of them

Every number that a step logs has an entry in `foxhunt_rt/dqn/expectations.py`, of which this page is made
(`tools/metrics_docs.py`): whether it moves in any training, stays constant until settings change it, or is zero unless something
is wrong; and a cause that moves it in a stated direction. `tests/dqn/test_expectations.py` refuses a metric without an entry,
holds an ordinary training to the part of the records, and plants the causes; those of the features are planted in the test of
their child (`tests/dqn/children`).

"""

if __name__ == "__main__":
    (ROOT / "docs" / "metrics.md").write_text(HEAD + markdown(), encoding="utf-8")
