"""`foxhunt-rt profile` through a real process."""

from __future__ import annotations

import json

import pytest

from .conftest import Cli
from .test_commands import SMALL

CHILDREN = ["counters", "per_sample", "forward", "ddqn", "adam_grad", "adam", "per_priority", "publish"]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return ["--config", str(path), "--steps", "4"]


def test_profile_times_every_child_and_finds_nothing_wrong(cli: Cli, small, tmp_path):
    done = cli("profile", *small, "--trace", str(tmp_path / "trace.json"), "--json")
    assert done.code == 0, done.err
    found = done.json
    assert [c["name"] for c in found["profile"]["children"]] == CHILDREN
    assert {row["child"] for row in found["profile"]["launches"]} == set(CHILDREN)
    assert found["findings"] == [], found["findings"]
    assert "none of the known causes" in done.out and "host wait" in done.out
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in spans if e["cat"] == "child"] == CHILDREN


@pytest.mark.parametrize(("plant", "cause"), [("synchronization", "hidden synchronization"),
                                              ("launch", "launches outside the parent"),
                                              ("allocation", "allocation per step")])  # fmt: skip
def test_a_planted_cause_is_named(cli: Cli, small, plant, cause):
    done = cli("profile", *small, "--no-launches", "--plant", plant, "--json")
    assert done.code == 0, done.err
    assert cause in [f["cause"] for f in done.json["findings"]]
    assert f"! {cause}" in done.out


def test_bad_arguments(cli: Cli):
    assert "give at least 1" in cli("profile", "--steps", "0").error
    assert cli("profile", "--plant", "nothing").code == 2
