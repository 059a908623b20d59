#!/usr/bin/env python3
"""Draws what measure.py found: the range of Q and the norm of the gradient over three folds, a panel a cause.

    python tools/q_explosion/draw.py found.npz docs        writes docs/q-explosion-range.png and docs/q-explosion-gradient.png

Takes matplotlib, which nothing else here does: pip install matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

BIN, FOLDS = 26, 3  # steps of one point: eighteen an epoch
CLEAR = np.uint64(2**64 - 1)
CAUSE, SOUND, NOTICE = "#b5482a", "#9aa0a6", "#1f4e79"


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Series and facts by cause."""
    found: dict[str, dict[str, Any]] = {}
    with np.load(path) as data:
        for key in data.files:
            cause, name = key.split("/")
            found.setdefault(cause, {})[name] = json.loads(str(data[key])) if name == "facts" else data[key]
    return found


def fold_steps(run: dict[str, Any]) -> int:
    """Steps of a fold."""
    return int(run["step"].max()) + 1


def at(run: dict[str, Any]) -> Any:
    """Each record's step, counted over all folds."""
    return (run["fold"] - 1) * fold_steps(run) + run["step"].astype(np.int64)


def envelope(run: dict[str, Any], name: str) -> tuple[Any, Any, Any]:
    """Step, smallest and largest of each bin; NaN where there is none."""
    values = np.full(FOLDS * fold_steps(run), np.nan)
    values[at(run)] = run[name]
    n = len(values) // BIN
    parts = values[: n * BIN].reshape(n, BIN)
    finite = np.where(np.isfinite(parts), parts, np.nan)
    empty = np.isnan(finite).all(1)
    low, high = (f(np.where(np.isnan(finite), fill, finite), 1) for f, fill in ((np.min, np.inf), (np.max, -np.inf)))
    low[empty] = high[empty] = np.nan
    return np.arange(n) * BIN, low, high


def noticed(run: dict[str, Any]) -> tuple[int, str] | None:
    """The step, counted over all folds, at which somebody noticed, and who."""
    facts, expect, starts = run["facts"], run["facts"]["expect"], [0, *(f * fold_steps(run) for f in range(FOLDS))]
    if expect.startswith("alarm") and expect in facts["alarms"]:
        first = facts["alarms"][expect]
        return starts[first["fold"]] + first["step"], expect.replace("_", " ")
    if facts["guarded"] is not None and "fault" in facts["guarded"]:
        fault = facts["guarded"]["fault"]
        return starts[fault["fold"]] + fault["step"], f"guard: {fault['check'].replace('_', ' ')}"
    if expect == "alone" and not facts["fold_2_alone_is_the_same"]:
        return starts[2], "fold 2 alone differs"
    return None


def frame(axes: Any, title: str, run: dict[str, Any]) -> None:
    """Title, folds, and where it was noticed."""
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    starts = [f * fold_steps(run) for f in range(FOLDS)]
    axes.set_xticks(starts, [f"fold {i + 1}" for i in range(len(starts))])
    for x in starts[1:]:
        axes.axvline(x, color="#dddddd", lw=0.8, zorder=0)
    axes.set_xlim(0, FOLDS * fold_steps(run))
    if (seen := noticed(run)) is not None:
        axes.axvline(seen[0], color=NOTICE, lw=1.2, ls=":")
        axes.annotate(seen[1], (seen[0], 1.0), xycoords=("data", "axes fraction"), xytext=(3, -9), fontsize=7, color=NOTICE,
                      textcoords="offset points")  # fmt: skip


def grid(runs: dict[str, dict[str, Any]], height: float) -> tuple[Any, list[Any]]:
    """A figure with a panel a cause."""
    rows = -(-len(runs) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(12, height * rows), constrained_layout=True)
    flat = list(np.ravel(axes))
    for spare in flat[len(runs) :]:
        spare.set_visible(False)
    return figure, flat


def draw_range(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """q_min to q_max of every step."""
    figure, panels = grid(runs, 1.9)
    for (name, run), axes in zip(runs.items(), panels, strict=False):
        x, *smallest = envelope(run, "q_min")
        _, *largest = envelope(run, "q_max")
        # a reduction's seed may stand above the smallest or below the largest
        low, high = np.fmin(smallest[0], largest[0]), np.fmax(smallest[1], largest[1])
        axes.fill_between(x, low, high, color=CAUSE if name != "none" else SOUND, lw=0, alpha=0.8)
        bounds = np.array([run["facts"]["blind"]["supports"][str(f)] for f in run["fold"]])
        for sign in (1, -1):
            axes.plot(at(run), sign * bounds, color="#333333", lw=0.8, ls="--")
        lost = at(run)[~np.isfinite(run["q_max"])]
        if len(lost):
            axes.axvspan(lost[0], lost[-1], color=CAUSE, alpha=0.15, lw=0)
            axes.text(lost[0], 0.06, " NaN", fontsize=7, color=CAUSE, transform=axes.get_xaxis_transform())
        axes.set_ylim(-1.2 * bounds.max(), 1.55 * bounds.max())  # room for the words at the top
        far = np.nanmax(np.abs(np.concatenate([low, high]))) > 1e3
        if far:
            axes.set_yscale("symlog", linthresh=10.0)
            axes.set_ylim(-1e33, 1e42)
            axes.set_yticks([-1e30, -1e15, 0, 1e15, 1e30])
        frame(axes, name, run)
    figure.suptitle("Reported range of Q of a step; dashed: the support, dotted: who notices", fontsize=10)
    figure.savefig(path, dpi=100)


def draw_gradient(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Norm of the gradient before the clip, beside that without a cause."""
    figure, panels = grid(runs, 1.7)
    sound = envelope(runs["none"], "grad_norm")
    for (name, run), axes in zip(runs.items(), panels, strict=False):
        axes.fill_between(*sound, color=SOUND, lw=0, alpha=0.6)
        if name != "none":
            axes.fill_between(*envelope(run, "grad_norm"), color=CAUSE, lw=0, alpha=0.7)
        axes.set_yscale("log")
        frame(axes, name, run)
    figure.suptitle("Norm of the gradient, smallest and largest of 26 steps; grey: this tree", fontsize=10)
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw what measure.py found.")
    parser.add_argument("found", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    runs = load(options.found)
    draw_range(runs, options.folder / "q-explosion-range.png")
    draw_gradient(runs, options.folder / "q-explosion-gradient.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
