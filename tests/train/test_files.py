"""Checkpoints and run folders: whole or absent, and refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt._files import write_whole
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from foxhunt_rt.train.metrics_log import MetricsLog
from foxhunt_rt.train.run_folder import RunFolder

TENSORS = {"theta": np.arange(7, dtype=np.float32), "counters": np.array([2**63, 1], np.uint64)}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "fold1.safetensors"
    save_checkpoint(path, TENSORS, {"fold": 1, "nested": {"support": [-1.5, 2.0]}}, Config.profile("smoke"))
    return path


def test_what_was_saved_comes_back(saved, tmp_path):
    tensors, facts, config = load_checkpoint(saved)
    for name, expected in TENSORS.items():
        assert tensors[name].dtype == expected.dtype
        np.testing.assert_array_equal(tensors[name], expected)
    assert facts == {"fold": 1, "nested": {"support": [-1.5, 2.0]}}
    (tmp_path / "c.toml").write_text(config)
    assert Config.load(tmp_path / "c.toml") == Config.profile("smoke")


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_checkpoint_is_refused(saved, keep):
    data = saved.read_bytes()
    saved.write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(saved)


def test_a_foreign_and_a_newer_one_and_none_are_refused(saved, tmp_path):
    from safetensors.numpy import save_file

    foreign, newer = tmp_path / "foreign.safetensors", tmp_path / "newer.safetensors"
    save_file({"w": np.ones(2, np.float32)}, foreign, metadata={"format": "pt"})
    save_file({"w": np.ones(2, np.float32)}, newer, metadata={"format": "foxhunt-rt 2"})
    with pytest.raises(CheckpointError, match="no checkpoint of foxhunt-rt"):
        load_checkpoint(foreign)
    with pytest.raises(CheckpointError, match="newer than this version"):
        load_checkpoint(newer)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "none.safetensors")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, tmp_path):
    before = saved.read_bytes()

    def fail(temporary):
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(saved, fail)
    assert saved.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [saved.name]


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    config = Config()
    folders = {RunFolder.create(tmp_path / "runs", "x", config, {}).path for _ in range(3)}
    assert len(folders) == 3
    assert all(Config.load(folder / "config.toml") == config for folder in folders)


def test_a_value_that_json_does_not_know_is_refused(tmp_path):
    folder = RunFolder.create(tmp_path, "x", Config(), {})
    with pytest.raises(ValueError, match="JSON"):
        folder.write_json("result.json", {"x": float("nan")})
    assert not (folder.path / "result.json").exists()


def test_the_log_keeps_every_record_with_its_fold_and_epoch(tmp_path):
    from pyarrow import parquet

    dtype = np.dtype([("sequence", "u8"), ("step", "u8"), ("started_ns", "u8"), ("ended_ns", "u8"), ("loss", "f4")])
    log = MetricsLog()
    log.add(1, 1, np.array([(1, 0, 1000, 3500, 0.5), (2, 1, 4000, 9000, 0.25)], dtype))
    log.add(1, 2, np.zeros(0, dtype))
    log.add(2, 1, np.array([(1, 0, 0, 1, 2.0)], dtype))
    log.write(tmp_path / "m.parquet")
    assert parquet.read_table(tmp_path / "m.parquet").to_pydict() == {
        "fold": [1, 1, 2], "epoch": [1, 1, 1], "step_us": [2.5, 5.0, 0.001], "step": [0, 1, 0], "loss": [0.5, 0.25, 2.0],
    }  # fmt: skip
