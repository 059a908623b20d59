#!/usr/bin/env python3
"""Writes docs/configuration.md from foxhunt_rt/config.py, so that the page cannot disagree with the code (tests compare).

python tools/config_docs.py            rewrites the page
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

One tree of frozen dataclasses in `foxhunt_rt/config.py` (of features: `_feature_options.py`) holds every default;
no program, child or kernel has one of its own
(known failure K20). A `Config` that exists is valid: types and ranges are checked where it is made, and a wrong value is one
line that ends with the mend.

    foxhunt-rt train bars.csv --profile smoke --set optim.lr=1e-3 --set network.hidden=64,64

    from foxhunt_rt.config import Config
    config = Config.profile("smoke").with_set(["optim.lr=1e-3"])
    config.save("run.toml")                       # complete
    config = Config.load("run.toml")              # what the file leaves out keeps its default

A run folder's `config.toml` is complete, so that a later change of a default does not change what a run was.

Settings of `learner.set(...)` (learning rate, discount, loss weights, alarms) may change while training runs; they reach the
device in stream order. Sizes (`network`, `replay.capacity`, `replay.batch`, `replay.n_step`, `loss.branch_reduction`, and whether
there is a gradient budget at all) are part of the captured graph: make a new learner.

This page is written by `tools/config_docs.py`.
"""


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def page() -> str:
    """The whole page as Markdown."""
    sys.path.insert(0, str(ROOT))
    from foxhunt_rt.config import _PROFILES, Config

    profiles = [name for name in _PROFILES if name != "default"]
    lines, section = [INTRODUCTION], ""
    tables = {name: {key: value for key, _, value, _ in Config.profile(name).options()} for name in profiles}
    for key, kind, value, doc in Config().options():
        head = key.split(".")[0]
        if head != section:
            section = head
            lines += [f"\n## {section}\n", f"| key | type | default | {' | '.join(profiles)} | meaning |",
                      "| --- | --- | --- |" + " --- |" * len(profiles) + " --- |"]  # fmt: skip
        changed = [_shown(tables[name][key]) if tables[name][key] != value else "" for name in profiles]
        text = doc.replace("|", "\\|")
        lines.append(f"| `{key}` | {kind} | {_shown(value)} | {' | '.join(changed)} | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
