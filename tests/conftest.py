"""Fixtures and options of every test: which driver the tests run on, and the strict modes of hostsim.

By default the tests run on hostsim with deferred execution, red zones and poisoned memory. On a GPU machine,
`pytest --foxhunt-driver=cuda` (or FOXHUNT_DRIVER=cuda) runs them on NVIDIA's driver and adds those marked gpu.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import foxhunt_rt

STRICT = "deferred=1,redzones=1,poison=1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--foxhunt-driver",
        choices=("hostsim", "cuda"),
        default=None,
        help="driver to test on (default: FOXHUNT_DRIVER, else hostsim)",
    )

    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def driver_name(config: pytest.Config) -> str:
    """The driver of this test run: "hostsim" or "cuda"."""
    chosen = config.getoption("--foxhunt-driver") or os.environ.get("FOXHUNT_DRIVER", "hostsim")
    return "cuda" if chosen == "cuda" else "hostsim"


def pytest_configure(config: pytest.Config) -> None:
    # Before anything loads the driver: it reads the environment once.
    driver = driver_name(config)
    os.environ["FOXHUNT_DRIVER"] = driver
    if driver == "hostsim":
        os.environ.setdefault("FOXHUNT_HOSTSIM", STRICT)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the oracle never competes for the GPU


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this driver cannot run; on a GPU, `-m gpu` is every test that works on the device."""
    if driver_name(config) == "cuda":
        for item in items:
            if "runtime" in getattr(item, "fixturenames", ()) or "tests/driver/" in item.nodeid:
                item.add_marker(pytest.mark.gpu)
    unwanted = "hostsim" if driver_name(config) == "cuda" else "gpu"
    names = [unwanted]
    if not config.getoption("--slow") and "slow" not in (config.option.markexpr or ""):
        names.append("slow")
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in names)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> str:
    modes = os.environ.get("FOXHUNT_HOSTSIM", "")
    return f"foxhunt-rt driver: {driver_name(config)}" + (f" ({modes})" if driver_name(config) == "hostsim" else "")


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> str:
    """The driver of this test run: "hostsim" or "cuda"."""
    return driver_name(request.config)


@pytest.fixture(scope="session")
def runtime() -> foxhunt_rt.Runtime:
    """One runtime for the whole test run."""
    import foxhunt_rt

    return foxhunt_rt.Runtime()
