"""`foxhunt-rt plan`: bytes by label without a driver; what does not fit is refused."""

from __future__ import annotations

import gc

import pytest

from foxhunt_rt.cli.errors import UsageError
from foxhunt_rt.cli.plan import memory_of, parse_size
from foxhunt_rt.config import Config
from foxhunt_rt.driver import live_allocations

from .conftest import Cli

NO_DRIVER = {"FOXHUNT_DRIVER": "hostsim"}


def test_bytes_by_label(cli: Cli) -> None:
    done = cli("plan", "--profile", "smoke", "--bars", "16384", "--json", env=NO_DRIVER)
    assert done.code == 0, done.err
    found = done.json
    labels = {item["label"] for item in found["items"]}
    assert {"adam.theta", "batch.state", "records"} <= labels, sorted(labels)
    assert found["buffer_bytes"] >= sum(i["bytes"] for i in found["items"] if i["kind"] == "device")
    assert found["device_bytes"] == found["buffer_bytes"] + found["module_bytes"]
    assert "using" not in done.err, "no driver was chosen"


def test_too_large_is_refused_up_front(cli: Cli) -> None:
    done = cli("plan", "--bars", "16384", "--memory", "1MiB", "--json", env=NO_DRIVER)
    assert done.code == 1 and "1,048,576 are there; the largest are " in done.error
    assert done.json["status"] == "error"
    done = cli("plan", "--memory", "much", env=NO_DRIVER)
    assert done.code == 2 and "write a size such as 80GiB" in done.error


def test_sizes_are_read() -> None:
    assert [parse_size(t) for t in ("17", "1KiB", "80GiB", "1.5M", "2TB")] == [
        17,
        1024,
        80 * 2**30,
        3 * 2**19,
        2 * 2**40,
    ]
    with pytest.raises(UsageError):
        parse_size("12 parsecs")


def test_the_plan_of_the_smoke_profile_holds(runtime) -> None:  # type: ignore[no-untyped-def]
    """Against what a world on the same bars allocates, to within 2 %."""
    from foxhunt_rt.cli.small_world import BARS, small_world

    config = Config.profile("smoke")
    gc.collect()  # of earlier tests
    before = sum(size for _, size in live_allocations())
    world = small_world(runtime, config)
    made = sum(size for _, size in live_allocations()) - before
    planned = sum(i.nbytes for i in memory_of(config, BARS, "host").items if i.kind != "module")
    assert planned == pytest.approx(made, rel=0.02)
    world.close()
