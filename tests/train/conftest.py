"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foxhunt_rt import driver


@pytest.fixture(scope="module")
def quick(runtime) -> Iterator[None]:
    """Whole runs without red zones: hostsim looks at all of them after each of some ten thousand launches, which takes twenty
    times as long as the launches. The collector's and the evaluator's tests run the same graphs with them."""
    sim = driver.hostsim()
    if sim is not None:
        sim.fxHostsimConfigure(b"redzones", 0)
    yield
    if sim is not None:
        sim.fxHostsimConfigure(b"redzones", 1)
