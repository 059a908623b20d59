"""Several training steps a launch through a whole walk: 11 steps an epoch, 4 a launch."""

from __future__ import annotations

import pytest

from foxhunt_rt.train import WalkForward

from .train_harness import small_config, small_data

pytestmark = pytest.mark.usefixtures("quick")


def test_every_step_is_launched_and_recorded(runtime, tmp_path):
    from pyarrow import parquet

    config = small_config("train.steps_per_launch=4")
    training = WalkForward(runtime, small_data(config), config, runs=tmp_path)
    try:
        result = training.run([1])
    finally:
        training.close()
    table = parquet.read_table(training.folder.path / "metrics.parquet").to_pydict()
    assert table["step"] == list(range(22))
    assert table["epoch"] == [1] * 11 + [2] * 11
    # Of 4, 4 and 3 steps, and one ungraphed launch where the number changes: 4 to 3, and back in the second epoch.
    assert result["launches_per_step"] < 0.5
