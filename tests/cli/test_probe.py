"""`foxhunt-rt probe` through a real process."""

from __future__ import annotations

from .conftest import Cli


def test_isolation_measures_every_arm_and_both_loading_modes(cli: Cli):
    done = cli("probe", "isolation", "--rounds", "1", "--replays", "3", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert {arm["checksums_wrong"] for arm in found["arms"]} == {0}
    assert set(found["loading_modes"]) == {"LAZY", "EAGER"}
    for mode in found["loading_modes"].values():
        assert [arm["arm"]["name"] for arm in mode["arms"]] == ["alone", "copy between", "first launch between"]
    assert "CUDA_MODULE_LOADING=EAGER: eager loading" in done.out


def test_some_arms_only(cli: Cli):
    done = cli("probe", "isolation", "--arms", "shared function", "--rounds", "1", "--no-loading", "--json")
    assert [arm["arm"]["name"] for arm in done.json["arms"]] == ["alone", "shared function"]
    assert "loading_modes" not in done.json


def test_floors(cli: Cli):
    done = cli("probe", "floors", "--json")
    assert done.code == 0, done.err
    assert len(done.json["floors"]) == 18
    assert "one dependent kernel node inside a graph" in done.out


def test_bad_arguments(cli: Cli):
    assert "give at least 1 of each" in cli("probe", "isolation", "--rounds", "0").error
    assert "the arms: alone" in cli("probe", "isolation", "--arms", "sharing", "--no-loading").error
    assert cli("probe", "nothing").code == 2
