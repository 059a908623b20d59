"""Every command through a real process: output, JSON, exit codes, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..train.train_harness import timeless
from .conftest import ROOT, environment

FAILURE, USAGE, GUARD, INTERRUPTED, TERMINATED = 1, 2, 5, 130, 143

SMALL = """
[network]
hidden = [16]
atoms = 11
[replay]
batch = 16
capacity = 4096
[market]
environments = 8
synthetic_bars = 3000
[market.features]
volatility_windows = [8, 32]
extreme_windows = [16]
return_lags = [1, 5]
macd_fast = 4
macd_slow = 9
rsi_period = 4
volume_window = 16
[train]
folds = 2
epochs = 2
steps_per_epoch = 12
probe_rows = 32
validation_share = 0.1
test_share = 0.1
"""


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Arguments that make any command small."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return ["--config", str(path)]


def test_train_ends_with_a_table_and_one_json_object(cli, small, tmp_path):
    done = cli("train", "--synthetic", *small, "--json", "--seed", "3", "--name", "first")
    assert done.code == 0, done.err
    assert "fold" in done.out
    assert "worst" in done.out
    result = done.json
    assert result["status"] == "ok"
    expected = {"bars": 3000, "bar_clock": "1 minute", "folds": 2, "epochs": 2, "steps": 48, "launches_per_step": 1,
                "guard_events": 0, "seed": 3}  # fmt: skip
    assert {name: result[name] for name in expected} == expected
    assert set(result["alarms"]) == {"edge_mass", "spike_share", "q_clip", "atom_use"}
    assert set(result["loss_first"]) == set(result["loss_last"]) == {"mse", "ce"}
    assert result["step_us_median"] > 0
    assert 0 < result["atom_use"] <= 1
    assert 0 < result["q_abs_max"] <= max(d["support"]["v_max"] for d in result["detail"])
    assert [t["fold"] for t in result["test"]] == [1, 2]
    for test in result["test"]:
        assert {"net_pnl", "sharpe", "trades", "costs", "max_drawdown", "clock", "baselines"} <= set(test)
        assert "1 minute" in test["clock"]
    folder = tmp_path / "work" / result["run"]
    assert folder.name.endswith("-first")
    assert json.loads((folder / "result.json").read_text()) == result

    again = cli("train", "--synthetic", *small, "--json", "--seed", "3", "--no-save")
    timed = {"wall_s", "step_us_median", "run"}

    def timeless(value):
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k not in timed}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    assert timeless(again.json) == timeless(result)

    # The run's own configuration runs it again, and one fold alone gives the fold of the whole run.
    alone = cli("train", "--synthetic", "--config", str(folder / "config.toml"), "--fold", "2", "--json", "--no-save")
    assert timeless(alone.json["test"]) == timeless([result["test"][1]])


def test_the_numbers_do_not_depend_on_how_blocks_and_launches_are_ordered(cli, small):
    """No float atomics, no unordered reduction, nothing read before it is there: known failures K7 and K9."""
    modes = ("", "seed=7,workers=1", "seed=11,workers=3,deferred=1")
    results = [
        cli("train", "--synthetic", *small, "--json", "--no-save", env={"FOXHUNT_HOSTSIM": mode}).json for mode in modes
    ]
    for other in results[1:]:
        assert other["test"] == results[0]["test"]
        assert other["loss_last"] == results[0]["loss_last"]
        assert other["q_abs_max"] == results[0]["q_abs_max"]


@pytest.mark.slow
@pytest.mark.hostsim
@pytest.mark.timeout(1800)
def test_the_full_step_gives_the_same_bits_four_ways_under_five_shuffle_seeds(cli):
    """Ungraphed, child by child, one launch, eight a launch, each in the order as recorded and in five others; the small
    sibling is tests/known_failures/test_same_bits_in_any_order.py."""
    verify = ("verify", "--profile", "full", "--steps", "8", "--set", "train.steps_per_launch=8", "--json")
    digests = set()
    for seed in range(6):
        found = cli(*verify, env={"FOXHUNT_HOSTSIM": f"seed={seed}" if seed else ""}, timeout=600)
        assert found.code == 0, (seed, found.out, found.err)
        assert found.json["bitwise_equal"] and len(found.json["modes"]) == 4
        digests |= {mode["digest"] for mode in found.json["modes"]}
    assert len(digests) == 1


def test_a_guard_fault_has_its_own_exit_code(cli, small, tmp_path):
    done = cli("train", "--synthetic", *small, "--json", "--set", "optim.lr=1e30", "--set", "optim.lr_min=1e30")
    assert done.code == GUARD, done.err
    assert "guard: step" in done.error
    assert done.json["exit_code"] == GUARD
    run = next((tmp_path / "work" / "runs").iterdir())
    assert (run / "metrics.parquet").exists()
    assert not (run / "result.json").exists()


def started(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    """The command, with SIGINT as from a terminal: what a shell starts in the background inherits that it is ignored."""
    work = tmp_path / "work"
    work.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen([sys.executable, "-m", "foxhunt_rt", *args], cwd=work, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(FOXHUNT_CACHE=str(tmp_path / "cache")),
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_a_signal_in_training_saves_a_whole_state(tmp_path, small, number, code):
    from foxhunt_rt.dqn.checkpoint import load_checkpoint

    process = started(tmp_path, "train", "--synthetic", *small, "--set", "train.steps_per_epoch=1000000")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("fold 1"):
            break
    time.sleep(1.0)
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == code
    assert "interrupted in fold 1, epoch 1" in err.splitlines()[-1]
    assert "saved in" in err.splitlines()[-1]
    assert "Traceback" not in err
    run = next((tmp_path / "work" / "runs").iterdir())
    tensors, facts, _ = load_checkpoint(run / "checkpoints" / "resume.safetensors")
    assert facts["current"]["fold"] == 0
    assert tensors["learner.theta"].size == tensors["learner.m"].size > 0
    assert (run / "metrics.parquet").exists() == (facts["current"]["step"] > 0)
    assert not list(run.rglob("*.tmp"))


def test_a_killed_run_is_resumed_to_the_same_result(tmp_path, small):
    """kill -9 once there is a checkpoint, then --resume: the result of a run that nobody killed."""
    command = (
        "train",
        "--synthetic",
        *small,
        "--set",
        "train.epochs=2",
        "--set",
        "train.steps_per_epoch=150",
        "--json",
    )
    process = started(tmp_path / "whole", *command)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    whole = json.loads(out.splitlines()[-1])

    process = started(tmp_path / "killed", *command)
    runs = tmp_path / "killed" / "work" / "runs"
    until = time.monotonic() + 100
    while not list(runs.rglob("resume.safetensors")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=100)
    (run,) = runs.iterdir()
    assert not (run / "result.json").exists()

    process = started(tmp_path / "killed", "train", "--synthetic", "--resume", str(run), "--json")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert timeless(json.loads(out.splitlines()[-1])) == timeless(whole)
    assert (run / "result.json").exists() and not list(run.rglob("resume*"))


@pytest.mark.parametrize(("number", "code", "word"),
                         [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated")])  # fmt: skip
def test_a_signal_before_training_says_that_nothing_was_written(tmp_path, small, number, code, word):
    process = started(tmp_path, "train", "--synthetic", *small, "--set", "market.synthetic_bars=3000000")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2.5)
        process.send_signal(number)
        _, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == code
    assert err.splitlines()[-1] == f"foxhunt-rt: {word}; nothing was written"
    assert not (tmp_path / "work" / "runs").exists()
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] if (tmp_path / "cache").exists() else True


def test_an_unwritable_run_folder_is_one_line(cli, small, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = cli("train", "--synthetic", *small, "--runs", str(blocked / "runs"))
    assert done.code == FAILURE
    assert "check the path" in done.error


def test_graph(cli, small):
    done = cli("graph", *small, "--json", "--ledger")
    assert done.code == 0, done.err
    found = done.json
    assert [c["name"] for c in found["children"]] == [
        "counters",
        "per_sample",
        "forward",
        "ddqn",
        "adam_grad",
        "adam",
        "per_priority",
    ]
    assert [c["name"] for c in found["epilogue"]] == ["publish"]
    assert all(c["kernels"] and c["modules"] for c in found["children"])
    assert (
        found["nodes"]
        == sum(c["nodes"] for c in [*found["children"], *found["epilogue"]])
        >= found["longest_chain"]
        > 0
    )
    assert found["shared_functions"] == found["ungraphed_users_of_captured_modules"] == found["breaches"] == []
    owners: dict[tuple[int, str], str] = {}
    for row in found["ledger"]:
        assert not (row["captured"] and row["ungraphed"])
        for kernel, child in row["captured"].items():
            assert owners.setdefault((row["module"], kernel), child) == child
    assert {"step/adam", "collect/collect", "evaluate/evaluate"} <= set(owners.values())
    assert set(found["plans"]) == {"collect", "evaluate"}


#: The children of the training step, as its specification tells them.
STEP = ["counters", "per_sample", "popart", "spectral", "forward", "ddqn", "aux", "post_aux", "adam_grad", "adam", "maintenance",
        "iql_modulate", "per_priority"]  # fmt: skip


def test_the_full_step_is_thirteen_children_in_order(cli):
    done = cli("graph", "--profile", "full", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert [c["name"] for c in found["children"]] == STEP and [c["name"] for c in found["epilogue"]] == ["publish"]
    parts = {c["name"]: [part["name"] for part in c["parts"]] for c in found["children"]}
    assert {"aux.cql", "aux.iql", "aux.iqn"} <= set(parts["aux"]) and "maintenance.causal" in parts["maintenance"]
    assert all(name.split(".")[0] == child for child, names in parts.items() for name in names)
    printed = [line.split()[0] for line in done.out.splitlines() if line and not line.startswith(" ")]
    assert printed[:14] == [*STEP, "publish"]
    graph_children = {name for edge in found["edges"] for name in edge}
    assert graph_children == {name for c in found["children"] for name in (parts[c["name"]] or [c["name"]])} | {
        "publish"
    }


def test_graph_dot_is_nothing_but_graphviz(cli, small):
    done = cli("graph", *small, "--dot")
    assert done.code == 0
    assert done.out.startswith('digraph "step" {')
    assert done.out.rstrip().endswith("}")
    assert all(f'label="{name}"' in done.out for name in ("counters", "adam", "publish"))


def test_verify(cli, small):
    done = cli("verify", *small, "--steps", "20", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["bitwise_equal"] is True
    assert found["steps"] == 20
    modes = {m["mode"]: m for m in found["modes"]}
    assert len({m["digest"] for m in modes.values()}) == 1
    assert modes["parent"]["launches"] == {"cuGraphLaunch": 20}
    assert modes["child by child"]["launches"] == {"cuGraphLaunch": 20 * 8}
    assert modes["ungraphed"]["launches"]["cuLaunchKernel"] > 20 * 8


@pytest.mark.parametrize("child", ["adam", "ddqn"])
def test_verify_finds_a_planted_bit_and_names_the_child(cli, small, child):
    done = cli("verify", *small, "--steps", "2", "--json", "--plant", f"child={child}")
    assert done.code == FAILURE
    assert done.json["bitwise_equal"] is False
    assert done.json["child"] == child


def test_verify_with_an_unknown_child(cli, small):
    for name, answer in (("adamm", "did you mean adam?"), ("zzz", "the children: counters, per_sample")):
        done = cli("verify", *small, "--plant", f"child={name}")
        assert done.code == USAGE
        assert answer in done.error


def test_doctor_knows_this_machine(cli):
    done = cli("doctor", "--json")
    assert done.code == 0, done.out
    findings = {f["check"]: f for f in done.json["findings"]}
    assert findings["hostsim"]["level"] == "ok"
    assert findings["sample"]["level"] == "note"
    assert not [
        f for f in done.json["findings"] if f["level"] != "ok" and not f["mend"] and f["check"] in ("kernels", "driver")
    ]


def test_doctor_says_what_is_missing_and_loads_no_driver(cli):
    done = cli("doctor", "--json", env={"FOXHUNT_DRIVER": "cuda3"})
    assert done.code == 4
    assert [f["mend"] for f in done.json["findings"] if f["level"] == "problem"] == [
        "set FOXHUNT_DRIVER to auto, cuda or hostsim"
    ]
    assert "using" not in done.err


def test_sample_makes_simulated_bars_without_a_network(cli, small):
    done = cli("sample", "--synthetic", *small, "--json", env={"PIP_NO_INDEX": "1"})
    assert done.code == 0, done.err
    assert done.json["bars"] == 3000
    assert Path(done.json["path"]).exists()


def test_help_and_version_answer(cli):
    from foxhunt_rt import __version__

    assert cli("--version").out.strip() == f"foxhunt-rt {__version__}"
    done = cli("--help")
    assert done.code == 0
    for command in ("train", "sample", "doctor", "graph", "verify"):
        assert command in done.out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_futures_with_their_roll_train_without_a_fault(cli):
    """Seven years in pieces: several expiries, holes of years, a price step of 77 % where one ends."""
    path = ROOT.parent / "shared" / "data" / "es_futures_1m_2013-10_2020-01_all-expiries.csv.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    done = cli("train", str(path), "--json", timeout=280)
    assert done.code == 0, done.err
    assert (done.json["guard_events"], done.json["bar_clock"]) == (0, "1 minute")
    assert done.json["loss_last"]["ce"] < 0.9 * done.json["loss_first"]["ce"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_main_job_on_real_bars(cli):
    """Acceptance of the smoke profile on a year of one-minute bars of a stock."""
    path = ROOT.parent / "shared" / "data" / "yndx_moex_stock_1m_2016_traded-bars.csv.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    done = cli("train", str(path), "--profile", "smoke", "--json", timeout=280)
    assert done.code == 0, done.err
    r = done.json
    assert (r["bars"], r["folds"], r["epochs"], r["steps"]) == (60429, 3, 2, 2808)
    assert (r["guard_events"], r["launches_per_step"], r["bar_clock"]) == (0, 1, "1 minute")
    assert r["loss_last"]["ce"] < 0.9 * r["loss_first"]["ce"]
    assert r["loss_last"]["mse"] <= r["loss_first"]["mse"]
    for detail in r["detail"]:
        first, stop = detail["windows"]["train"]
        assert all(epoch["bars_seen"] == stop - first for epoch in detail["epochs"])
