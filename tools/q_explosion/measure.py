#!/usr/bin/env python3
"""Trains three folds with each candidate cause of known failure K11 in place, and keeps what it did and who noticed.

    python tools/q_explosion/measure.py BARS -o found.npz                 all causes, each in a copy of the tree: some minutes
    python tools/q_explosion/measure.py BARS -o found.npz --only none NaN
    python tools/q_explosion/draw.py found.npz docs                       the figures of docs/q-explosion.md

Each cause trains on hostsim with a host that does not look at the guard, so that training goes on; when the guard was claimed,
once more with the guard as it is.
The smoke profile, with six epochs a fold: alpha_c51 is 0, 0.2, ... 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "tests" / "known_failures"))

from causes import CAUSES, Cause  # noqa: E402
from planting import build, copy_tree  # noqa: E402

SETTINGS = ("train.epochs=6",)
#: Of the file's bars, the first so many: some 100 sessions.
BARS = 24_000
#: Of a record, what is kept of each step.
FIELDS = ("q_min", "q_max", "grad_norm", "alpha_c51", "ce", "mse", "loss", "td_error", "edge_mass", "atom_use", "spike_share",
          "alarm_edge_mass", "alarm_spike_share", "alarm_q_clip", "alarm_atom_use", "guard_key")  # fmt: skip


def train(bars: Path, settings: list[str], nan: tuple[int, int] | None, blind: bool, folds: list[int] | None,
          most_steps: int) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """One training run in the tree that this file lies in: series by name, and facts. Runs in a process of its own."""
    import foxhunt_rt as fx
    from foxhunt_rt.config import Config
    from foxhunt_rt.dqn import records
    from foxhunt_rt.dqn.guard import GuardFault
    from foxhunt_rt.market.bars import load_bars
    from foxhunt_rt.train import DataSet, WalkForward
    from foxhunt_rt.train.progress import Observer

    if blind:
        records._CLEAR = b""  # every record begins with it
    config = Config.profile("smoke").with_set([*SETTINGS, *settings])
    loaded, spec, _ = load_bars(bars, config.market)
    loaded = loaded.slice(0, BARS)
    supports: dict[int, float] = {}

    class Watch(Observer):
        """Which fold it is, and its support."""

        fold = 0

        def fold_started(self, fold: int, about: dict[str, Any]) -> None:
            self.fold, supports[fold] = fold, float(about["support"]["v_max"])

    watch, facts = Watch(), dict[str, Any]()
    with fx.Runtime() as rt:
        run = WalkForward(rt, DataSet.prepare(loaded, spec, config), config, observer=watch)
        learner, step = run.world.learner, run.world.learner.step

        def planted(steps: int | None = None) -> int:
            if nan is not None and (watch.fold, learner.launched) == nan:
                theta = learner.adam.theta.to_numpy()  # type: ignore[attr-defined]
                theta[learner.layout.layers[-1].bias.offset] = np.nan
                learner.adam.theta.copy_from(theta)  # type: ignore[attr-defined]
            return step(steps)

        learner.step = planted  # type: ignore[method-assign]
        if blind:  # a policy of NaN chooses no action: the environment takes it as no order, and nobody asks
            for environment in (run.world.environment, run.world.evaluator.environment):
                environment.check = lambda: None  # type: ignore[method-assign]
        began = time.perf_counter()
        stop = (lambda: learner.launched >= most_steps) if most_steps else None
        try:
            run.run(folds, stop=stop)
        except GuardFault as fault:
            facts["fault"] = {"fold": watch.fold, "step": fault.step, "child": fault.child, "check": fault.check,
                              "value": repr(fault.value)}  # fmt: skip
        except Exception as error:  # what a training that nobody guards ends with is a result, too
            facts["error"] = f"{type(error).__name__}: {error}"
            if len(rest := learner.drain()):
                run.log.add(watch.fold, round(float(rest["alpha_c51"][0]) / config.loss.alpha_c51_step) + 1, rest)
        except KeyboardInterrupt:  # `stop`
            pass
        facts |= {"seconds": time.perf_counter() - began, "supports": supports}
        columns, parts = run.log.columns(), run.log.records()
        run.close()
    columns["guard_key"] = np.concatenate([part["guard_key"] for part in parts])
    return {name: np.asarray(columns[name]) for name in ("fold", "epoch", "step", *FIELDS)}, facts


def first_notice(series: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The first step of each alarm, from where it first could be raised."""
    found: dict[str, Any] = {}
    for name in FIELDS:
        if name.startswith("alarm_") and len(at := np.flatnonzero(series[name])):
            found[name] = {"fold": int(series["fold"][at[0]]), "step": int(series["step"][at[0]]), "share":
                           float((np.diff(series[name].astype(np.int64), prepend=0) > 0).mean())}  # fmt: skip
    return found


def in_tree(tree: Path, bars: Path, cause: Cause, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`train` in another tree, by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.npz"
        command = [
            sys.executable,
            str(tree / "tools/q_explosion/measure.py"),
            str(bars),
            "-o",
            str(out),
            "--train",
            *more,
        ]
        for setting in cause.settings:
            command += ["--set", setting]
        if cause.nan is not None:
            command += ["--nan", *map(str, cause.nan)]
        environment = os.environ | {"PYTHONPATH": str(tree), "FOXHUNT_DRIVER": "hostsim"}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{cause.name}: training did not run:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        with np.load(out) as data:
            series = {name: data[name] for name in data.files if name != "facts"}
            return series, json.loads(str(data["facts"]))


def measure(tree: Path, bars: Path, cause: Cause) -> tuple[dict[str, Any], dict[str, Any]]:
    """The runs of a cause in a copy of the tree, and the first steps of fold 2 alone."""
    saved = {name: (tree / name).read_text() for name, _, _ in cause.edits}
    native = any(name.startswith("cuda_src") for name in saved)
    try:
        for name, old, new in cause.edits:
            text = (tree / name).read_text()
            if old not in text:
                raise SystemExit(f"{cause.name}: {name} no longer holds {old!r}: write the change into the new code")
            (tree / name).write_text(text.replace(old, new, 1))
        if native:
            build(tree)
        series, blind = in_tree(tree, bars, cause, "--blind")
        claimed = bool((series["guard_key"] != np.uint64(2**64 - 1)).any())
        guarded = in_tree(tree, bars, cause)[1] if claimed else None
        alone, _ = in_tree(tree, bars, cause, "--fold", "2", "--steps", "3")
    finally:
        for name, text in saved.items():
            (tree / name).write_text(text)
        if native:
            build(tree)
    second = series["fold"] == 2
    same = [name for name in FIELDS if np.array_equal(series[name][second][:1], alone[name][:1], equal_nan=True)]
    facts = {"expect": cause.expect, "about": cause.about, "blind": blind, "guarded": guarded,
             "alarms": first_notice(series, blind), "fold_2_alone_is_the_same": len(same) == len(FIELDS)}  # fmt: skip
    return series, facts


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with each candidate cause of known failure K11.")
    parser.add_argument("bars", type=Path)
    parser.add_argument("-o", dest="out", type=Path, required=True, help="an .npz; causes that it holds already stay")
    parser.add_argument("--only", nargs="+", choices=[c.name for c in CAUSES], default=[c.name for c in CAUSES])
    parser.add_argument(
        "--in", dest="folder", type=Path, help="a copy of the tree made before, with its build; else a new one"
    )
    one = parser.add_argument_group("one training run in this tree (what the rest calls)")
    one.add_argument("--train", action="store_true")
    one.add_argument("--blind", action="store_true", help="nobody looks at the guard")
    one.add_argument("--set", action="append", default=[], dest="settings")
    one.add_argument("--nan", type=int, nargs=2)
    one.add_argument("--fold", type=int)
    one.add_argument("--steps", type=int, default=0, help="end after so many steps of a fold")
    options = parser.parse_args()
    bars = options.bars.resolve()
    if options.train:
        series, facts = train(bars, options.settings, tuple(options.nan) if options.nan else None, options.blind,
                              [options.fold] if options.fold else None, options.steps)  # fmt: skip
        np.savez_compressed(options.out, facts=json.dumps(facts), **series)
        return 0
    kept: dict[str, Any] = dict(np.load(options.out)) if options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="foxhunt-explosion-") as made:
        tree = options.folder or Path(made)
        copy_tree(tree)
        build(tree)
        for cause in CAUSES:
            if cause.name not in options.only:
                continue
            print(cause.name, flush=True)
            series, facts = measure(tree, bars, cause)
            print("   ", json.dumps({k: v for k, v in facts.items() if k != "about"}), flush=True)
            kept |= {f"{cause.name}/{name}": values for name, values in series.items()}
            kept[f"{cause.name}/facts"] = np.array(json.dumps(facts))
            np.savez_compressed(options.out, **kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
