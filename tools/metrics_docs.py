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
is wrong; and a cause that moves it in a stated direction. `tests/dqn/plants.py` has a training without the cause and one with it
for each. `tests/dqn/test_expectations.py` refuses a metric without an entry or a plant, holds an ordinary training, of the core
and with every feature, to the first part, and runs the plants, whose direction stands here alone. For the event at the end of
an epoch `tests/train/test_event_expectations.py` does so.

"""

if __name__ == "__main__":
    (ROOT / "docs" / "metrics.md").write_text(HEAD + markdown(), encoding="utf-8")
