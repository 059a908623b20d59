"""The configuration tree: round trip, refusals with their mends, and that no default stands anywhere else (K20)."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from foxhunt_rt.config import Config, ConfigError, LossConfig, NetworkConfig, ReplayConfig

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("profile", ["default", "smoke", "full", "production"])
def test_toml_round_trip_is_complete(profile: str, tmp_path: Path) -> None:
    config = Config.profile(profile)
    path = tmp_path / "config.toml"
    config.save(path)
    assert Config.load(path) == config
    text = path.read_text()
    for key, _, _, _ in config.options():
        assert key.rsplit(".", 1)[1] in text


def test_smoke_is_what_the_acceptance_test_says() -> None:
    config = Config.profile("smoke")
    assert config.network.hidden == (64, 64)
    assert config.replay.batch == 64
    assert (config.train.folds, config.train.epochs, config.train.steps_per_epoch) == (3, 2, 468)
    assert config.horizon == 936


def test_alpha_c51_grows_by_epoch_to_its_end() -> None:
    config = Config()
    assert [round(config.alpha_c51(e), 6) for e in range(7)] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0]


def test_set_reads_every_type() -> None:
    config = Config().with_set(
        [
            "network.hidden=32, 16",
            "optim.lr=1e-3",
            "replay.capacity=65_537",
            "train.window=expanding",
            "replay.capacity=0x20000",
        ]
    )
    assert config.network.hidden == (32, 16)
    assert config.optim.lr == 1e-3
    assert config.replay.capacity == 0x20000
    assert config.train.window == "expanding"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("optim.lrr=1", "did you mean lr?"),
        ("optm.lr=1", "did you mean optim?"),
        ("optim.lr", "section.key=value"),
        ("lr=1", "section.key=value"),
        ("optim=1", "cannot read"),
        ("optim.lr=fast", "number"),
        ("optim.lr=nan", "finite"),
        ("optim.lr.x=1", "leave the rest out"),
        ("replay.batch=1.5", "integer"),
        ("replay.batch=0", "at least 1"),
        ("replay.n_step=65", "at most 64"),
        ("loss.label_smoothing=1", "below 1"),
        ("replay.eps=0", "above 0"),
        ("network.precision=fp8", "choose one of fp32, tf32, bf16"),
        ("network.hidden=", "1 to 8"),
        ("network.hidden=64,0", "at least 1"),
        ("loss.v_min=10", "positive width"),
        ("replay.capacity=256", "raise the capacity"),
        ("optim.lr_min=1", "lower it"),
    ],
)
def test_wrong_assignments_are_refused_with_the_mend(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match=None) as caught:
        Config().with_set([assignment])
    message = str(caught.value)
    assert says in message
    assert "\n" not in message


def test_wrong_types_are_refused_in_the_constructor() -> None:
    with pytest.raises(ConfigError, match="integer"):
        ReplayConfig(batch=True)
    with pytest.raises(ConfigError, match="integer"):
        NetworkConfig(hidden=(64.0,))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="number"):
        LossConfig(gamma="0.9")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="LossConfig"):
        Config(loss=ReplayConfig())  # type: ignore[arg-type]
    assert NetworkConfig(hidden=[8, 8]).hidden == (8, 8)  # type: ignore[arg-type]


def test_files_that_cannot_be_read_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Config.load(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[optim\n")
    with pytest.raises(ConfigError, match="not TOML"):
        Config.load(bad)
    bad.write_text("[optim]\nlearning_rate = 1\n")
    with pytest.raises(ConfigError, match="unknown key optim.learning_rate"):
        Config.load(bad)
    bad.write_text("optim = 3\n")
    with pytest.raises(ConfigError, match="is a table"):
        Config.load(bad)


def test_config_is_frozen_and_picklable() -> None:
    config = Config.profile("smoke")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.network.atoms = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config
    error = ConfigError("x; do y")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_unknown_profile_names_the_known() -> None:
    with pytest.raises(ConfigError, match="did you mean smoke"):
        Config.profile("smok")


def test_the_page_is_the_code() -> None:
    import config_docs

    assert config_docs.PAGE.read_text() == config_docs.page(), "run python tools/config_docs.py"
