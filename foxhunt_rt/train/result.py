"""The result of a run: what `foxhunt-rt train --json` prints and `result.json` holds."""

from __future__ import annotations

import statistics
from typing import Any

from foxhunt_rt.train.fold import ALARMS, FoldReport
from foxhunt_rt.train.world import World

__all__ = ["build_result", "summary"]


def build_result(world: World, reports: list[FoldReport], wall_s: float, step_us_median: float) -> dict[str, Any]:
    """All numbers of a run, JSON-ready. Those that are not times depend on bars, configuration and seed alone.

    Parameters
    ----------
    world : World
    reports : list of FoldReport
        At least one.
    wall_s : float
        Wall time of the run.
    step_us_median : float
        Over all steps of all folds.
    """
    steps = sum(r.steps for r in reports)
    launches = sum(r.launches for r in reports)
    epochs = [e for r in reports for e in r.epochs]
    config = world.config
    return {
        "status": "ok",
        "driver": world.runtime.driver_kind,
        "device": world.runtime.device.name,
        "architecture": world.runtime.device.architecture,
        "bars": len(world.data.bars),
        "bar_clock": world.data.bars.clock,
        "symbol": world.data.bars.symbol,
        "folds": len(reports),
        "epochs": config.train.epochs,
        "steps": steps,
        "step_us_median": round(step_us_median, 3),
        "launches_per_step": _whole(launches / steps),
        "guard_events": 0,
        "alarms": {name: sum(r.alarms[name] for r in reports) for name in ALARMS},
        "policy_alarms": [f"fold {r.fold.index + 1}: {text}" for r in reports for text in r.test["alarms"]],
        "loss_first": _mean_loss([r.loss_first for r in reports]),
        "loss_last": _mean_loss([r.loss_last for r in reports]),
        "q_abs_max": max(max(abs(e["q_min"]), abs(e["q_max"])) for e in epochs),
        "atom_use": statistics.fmean(r.epochs[-1]["atom_use"] for r in reports),
        "bars_seen": [r.bars_seen for r in reports],
        "wall_s": round(wall_s, 3),
        "seed": config.train.seed,
        "test": [r.test for r in reports],
        "summary": summary([r.test for r in reports]),
        "detail": [{"fold": r.fold.index + 1, "windows": r.fold.to_dict(), "support": vars(r.support),
                    "best_epoch": r.best_epoch, "loss_first": r.loss_first, "loss_last": r.loss_last,
                    "alarms": r.alarms, "epochs": r.epochs} for r in reports],
    }  # fmt: skip


def summary(tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, spread (sample standard deviation) and worst over the folds; the worst fold by net PnL."""
    result: dict[str, Any] = {}
    for name in ("net_pnl", "sharpe"):
        values = [t[name] for t in tests if t[name] is not None]
        result[name] = {
            "mean": statistics.fmean(values) if values else None,
            "spread": statistics.stdev(values) if len(values) > 1 else None,
            "worst": min(values) if values else None,
        }
    result["worst_fold"] = min(tests, key=lambda t: t["net_pnl"])["fold"]
    return result


def _mean_loss(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(p[name] for p in parts) for name in ("mse", "ce")}


def _whole(value: float) -> float | int:
    return int(value) if value == int(value) else value
