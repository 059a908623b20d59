"""Bad input: one line that ends with the mend, the documented exit code, and nothing half-written."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from .conftest import ROOT, csv_lines

USAGE, DATA, MACHINE = 2, 3, 4


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def negative(lines: list[str]) -> list[str]:
    cells = lines[40].split(",")
    return [*lines[:40], ",".join([cells[0], *(f"-{c}" for c in cells[1:5]), *cells[5:]]), *lines[41:]]


def text_price(lines: list[str]) -> list[str]:
    cells = lines[40].split(",")
    return [*lines[:40], ",".join([cells[0], "abc", *cells[2:]]), *lines[41:]]


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("empty.csv", lambda lines: [], "empty.csv"),
        ("header.csv", lambda lines: lines[:1], "header.csv"),
        ("order.csv", lambda lines: [*lines[:20], lines[30], *lines[20:30], *lines[31:]], "earlier"),
        ("negative.csv", negative, "row 41"),
        ("text.csv", text_price, "text.csv"),
        ("columns.csv", lambda lines: [line.rsplit(",", 4)[0] for line in lines], "columns.csv"),
        ("duplicate.csv", lambda lines: [*lines[:50], lines[49], *lines[50:]], "repeats"),
    ],
)
def test_bad_bars(cli, leftovers, tmp_path, name, spoil, says):
    path = tmp_path / name
    lines = spoil(csv_lines())
    path.write_text("\n".join(lines) + "\n" if lines else "")
    done = cli("train", str(path))
    assert done.code == DATA, done.err
    assert name in done.error
    assert says in done.error
    assert leftovers() == []


def test_missing_file(cli, leftovers):
    done = cli("train", "no/such/bars.csv")
    assert done.code == DATA
    assert "no/such/bars.csv" in done.error
    assert leftovers() == []


def test_truncated_gzip(cli, tmp_path):
    whole = gzip.compress("\n".join(csv_lines(3000)).encode())
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    done = cli("train", str(path))
    assert done.code == DATA
    assert "cut.csv.gz" in done.error


def test_truncated_parquet(cli, tmp_path):
    from foxhunt_rt.market.sample import write_bars
    from foxhunt_rt.market.synthetic import simulate

    path = tmp_path / "whole.parquet"
    write_bars(simulate(2000, 1).bars, path)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(path.read_bytes()[:-100])
    done = cli("train", str(cut))
    assert done.code == DATA
    assert "cut.parquet" in done.error


def test_too_few_bars_for_the_folds(cli, tmp_path, leftovers):
    done = cli("train", write(tmp_path / "short.csv", csv_lines(300)))
    assert done.code == DATA
    assert "train.folds=1" in done.error
    assert leftovers() == []


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("optim.lrr=1", "did you mean lr?"),
        ("optin.lr=1", "did you mean optim?"),
        ("replay.batch=0", "at least 1"),
        ("replay.capacity=32", "at least 256"),
        ("network.hidden=0", "at least 1"),
        ("replay.n_step=0", "at least 1"),
        ("network.atoms=100000", "at most 256"),
        ("train.seed=abc", "integer"),
        ("optim.lr=nan", "not finite"),
        ("train.folds=1.5", "integer"),
        ("market.policy=ignore", "choose one of"),
        ("lr=1", "write section.key=value"),
    ],
)
def test_bad_configuration(cli, leftovers, tmp_path, setting, says):
    done = cli("train", write(tmp_path / "bars.csv", csv_lines()), "--set", setting)
    assert done.code == USAGE
    assert says in done.error
    assert leftovers() == []


def test_more_environments_than_there_is_work_for(cli, leftovers, tmp_path):
    bars = write(tmp_path / "bars.csv", csv_lines(3000))
    done = cli("train", bars, "--set", "market.environments=5000", "--set", "replay.capacity=100000")
    assert done.code == USAGE
    assert "market.environments = 5000" in done.error
    assert "fewer environments" in done.error
    assert leftovers() == []


def test_a_ring_too_small_for_the_environments(cli, leftovers, tmp_path):
    done = cli("train", write(tmp_path / "bars.csv", csv_lines(3000)), "--set", "replay.capacity=256")
    assert done.code == USAGE
    assert "raise the capacity" in done.error
    assert leftovers() == []


def test_bad_configuration_file(cli, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[optim]\nlearning_rate = 1e-3\n")
    done = cli("train", "--config", str(path), "--synthetic")
    assert done.code == USAGE
    assert "optim.learning_rate" in done.error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["trian"], "did you mean train?"),
        (["train", "--profil", "smoke"], "--profil"),
        (["train", "--profile", "smokee"], "did you mean smoke?"),
        (["train", "bars.csv", "--synthetic"], "leave one out"),
        (["train", "--resume", "runs/x", "--set", "optim.lr=1", "--fold", "1"], "leave out --set, --fold"),
        (["verify", "--plant", "adam"], "child=NAME"),
        (["verify", "--steps", "0"], "at least 1"),
    ],
)
def test_bad_usage(cli, leftovers, args, says):
    done = cli(*args)
    assert done.code == USAGE
    assert says in done.error
    assert leftovers() == []


def test_a_run_that_is_not_there_is_not_resumed(cli, leftovers):
    done = cli("train", "--resume", "runs/x")
    assert done.code == DATA
    assert "runs/x: no such run; give the folder" in done.error
    assert leftovers() == []


def test_json_errors_are_json_too(cli):
    done = cli("train", "no.csv", "--json")
    assert done.code == DATA
    assert done.json == {"status": "error", "exit_code": DATA, "error": done.json["error"]}
    assert "no.csv" in done.json["error"]


def test_verbose_shows_the_traceback(cli):
    done = cli("train", "no.csv", "-v")
    assert done.code == DATA
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("foxhunt-rt: ")


@pytest.mark.parametrize(
    "env", [{"PIP_NO_INDEX": "1"}, {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}]
)
def test_no_network_for_the_sample(cli, leftovers, env):
    if "PIP_INDEX_URL" in env:
        env = {**env, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_NO_INDEX": ""}
    done = cli("train", env={"PIP_CONFIG_FILE": "/dev/null", **env})
    assert done.code == DATA, done.err
    assert "--synthetic" in done.error
    assert leftovers() == []


def test_no_image_for_this_architecture(cli, tmp_path):
    """The package without the images of the device in use."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(
        ROOT / "foxhunt_rt", copy / "foxhunt_rt", ignore=shutil.ignore_patterns("host", "host-baseline", "sm_*")
    )
    done = cli("train", write(tmp_path / "bars.csv", csv_lines(3000)), env={"PYTHONPATH": str(copy)})
    assert done.code == MACHINE, done.err
    assert "no image" in done.error
    assert "rebuild with" in done.error


def test_no_driver(cli, tmp_path):
    """The package without hostsim, and no other driver asked for."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "foxhunt_rt", copy / "foxhunt_rt", ignore=shutil.ignore_patterns("*.so"))
    env = {"PYTHONPATH": str(copy), "FOXHUNT_DRIVER": "hostsim"}
    done = cli("train", write(tmp_path / "bars.csv", csv_lines(3000)), env=env)
    assert done.code == MACHINE, done.err
    assert "tools/build.py" in done.error


def test_unknown_driver(cli, tmp_path):
    done = cli("train", write(tmp_path / "bars.csv", csv_lines(3000)), env={"FOXHUNT_DRIVER": "cuda2"})
    assert done.code == MACHINE
    assert "auto, cuda or hostsim" in done.error
