"""Options of every test: the plugin `foxhunt_rt.testing` chooses the driver, and here is what is only ours.

By default the tests run on hostsim with deferred execution, red zones and poisoned memory. On a GPU machine,
`pytest --foxhunt-driver=cuda` (or FOXHUNT_DRIVER=cuda) runs them on NVIDIA's driver and adds those marked gpu.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # not before pytest has imported the plugin
    from foxhunt_rt.graph import StepGraph

pytest_plugins = ["foxhunt_rt.testing.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def driver_name(config: pytest.Config) -> str:
    """The driver of this test run: "hostsim" or "cuda"."""
    from foxhunt_rt.testing.plugin import chosen_driver  # not before pytest has imported the plugin

    return chosen_driver(config) or "hostsim"


#: Code that is compiled for seconds and runs for milliseconds: no optimization, and no pass through MLIR for each fusion.
FAST_COMPILING = ("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false")


def known_flags(config: pytest.Config) -> str:
    """Those of `FAST_COMPILING` that this jaxlib takes. XLA ends the process at one that it does not know, so a process tries
    each; the answer is kept by version."""
    try:
        key = f"foxhunt/xla-flags-{importlib.metadata.version('jaxlib')}"
    except importlib.metadata.PackageNotFoundError:
        return ""
    cache = getattr(config, "cache", None)
    found: str | None = cache.get(key, None) if cache else None
    if found is None:
        compiles = [sys.executable, "-c", "import jax; jax.jit(lambda x: x + 1)(1.0)"]
        known = []
        for flag in FAST_COMPILING:
            tried = subprocess.run(compiles, env={**os.environ, "XLA_FLAGS": flag}, capture_output=True, check=False)
            if tried.returncode == 0:
                known.append(flag)
        found = " ".join(known)
        if cache:
            cache.set(key, found)
    return found


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the oracle never competes for the GPU
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = known_flags(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests; on a GPU, `-m gpu` is every test that works on the device."""
    if driver_name(config) == "cuda":
        for item in items:
            if "runtime" in getattr(item, "fixturenames", ()) or "tests/driver/" in item.nodeid:
                item.add_marker(pytest.mark.gpu)
    if config.getoption("--slow") or "slow" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> str:
    """The driver of this test run: "hostsim" or "cuda"."""
    return driver_name(request.config)


@pytest.fixture
def no_redzones() -> Iterator[None]:
    """Red zones are looked through after every launch, which is long for a thousand."""
    from foxhunt_rt.driver import hostsim

    sim = hostsim()
    if sim is not None:
        sim.fxHostsimConfigure(b"redzones", 0)
    yield
    if sim is not None:
        sim.fxHostsimConfigure(b"redzones", 1)


@pytest.fixture
def built() -> Iterator[list[StepGraph]]:
    """Steps that a test puts here are closed after it."""
    steps: list[StepGraph] = []
    yield steps
    for step in steps:
        step.close()
