"""The pytest plugin: which driver tests run on, marks for what needs one of them, fixtures.

It is loaded by the entry point ``pytest11`` and stays out of the way until a driver is chosen, by ``--foxhunt-driver``, by
FOXHUNT_DRIVER, or by the option ``foxhunt_driver`` of pytest's configuration file: before that it deselects and sets nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime, StepGraph, StepPlan

#: Modes of hostsim in which tests run unless FOXHUNT_HOSTSIM says otherwise; docs/hostsim.md has them all.
STRICT = "deferred=1,redzones=1,poison=1"
_MARKS = (
    "gpu: needs NVIDIA's driver and a GPU (deselected under --foxhunt-driver=hostsim)",
    "hostsim: tests what only hostsim does (deselected under --foxhunt-driver=cuda)",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("foxhunt-rt")
    group.addoption("--foxhunt-driver", choices=("hostsim", "cuda"), default=None,
                    help="driver that foxhunt_rt loads in this test run (default: FOXHUNT_DRIVER, then the configuration "
                    "file)")  # fmt: skip
    group.addoption("--foxhunt-golden", choices=("check", "record"), default="check",
                    help="what the fixture golden does: replay the files beside the tests, or write them anew")  # fmt: skip
    parser.addini("foxhunt_driver", "driver that foxhunt_rt loads in tests: hostsim or cuda", default="")


def chosen_driver(config: pytest.Config) -> str | None:
    """``"hostsim"``, ``"cuda"``, or None where nobody chose: then `foxhunt_rt` decides, and nothing is deselected."""
    chosen = config.getoption("--foxhunt-driver") or os.environ.get("FOXHUNT_DRIVER") or config.getini("foxhunt_driver")
    return chosen if chosen in ("hostsim", "cuda") else None


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    driver = chosen_driver(config)
    if driver is not None:  # before anything loads the driver, which reads both once
        os.environ["FOXHUNT_DRIVER"] = driver
        if driver == "hostsim":
            os.environ.setdefault("FOXHUNT_HOSTSIM", STRICT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the chosen driver cannot run."""
    unwanted = {"cuda": "hostsim", "hostsim": "gpu"}.get(chosen_driver(config) or "")
    left_out = [item for item in items if unwanted and item.get_closest_marker(unwanted)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> str | None:
    driver = chosen_driver(config)
    if driver is None:
        return None
    modes = os.environ.get("FOXHUNT_HOSTSIM", "")
    return f"foxhunt-rt driver: {driver}" + (f" ({modes})" if driver == "hostsim" else "")


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """One `Runtime` on device 0 for the whole test run."""
    from foxhunt_rt.graph import Runtime

    return Runtime()


@pytest.fixture
def step_plan(runtime: Runtime, request: pytest.FixtureRequest) -> Iterator[StepPlan]:
    """A new `StepPlan` named after the test. What is built from it is closed when the test ends."""
    from foxhunt_rt.graph import StepPlan

    class Plan(StepPlan):
        built: list[StepGraph] = []  # noqa: RUF012  (one class a test)

        def build(self, **options: Any) -> StepGraph:
            self.built.append(super().build(**options))
            return self.built[-1]

    plan = Plan(runtime, runtime._unique(request.node.name))
    yield plan
    for step in plan.built:
        step.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``golden(step, steps=1, tolerance=None)`` replays the golden file of this test and fails at the first departure.

    The file is ``golden/<module>-<test>.npz`` beside the test; ``--foxhunt-golden=record`` writes it.
    """
    from foxhunt_rt.graph.golden import Golden, Recorder, Replayer

    name = re.sub(r"[^\w.=-]+", "-", f"{request.path.stem}-{request.node.name}").strip("-")
    path = request.path.with_name("golden") / f"{name}.npz"

    def check(step: StepGraph, steps: int = 1, tolerance: float | None = None) -> None:
        if request.config.getoption("--foxhunt-golden") == "record":
            path.parent.mkdir(exist_ok=True)
            Recorder(step).record(steps).save(path)
            return
        if not path.exists():
            pytest.fail(
                f"{path} is missing: run this test with --foxhunt-golden=record, look at it, and keep the file",
                pytrace=False,
            )
        recording = Golden.load(path)
        departure = Replayer(step, recording).run(tolerance=tolerance)
        if departure is not None:
            about = ", ".join(f"{key} {recording.meta[key]}" for key in ("driver", "device", "package"))
            pytest.fail(f"the replay departs from {path.name} ({about}): {departure}\nthe ledger:\n"
                        f"{step.runtime.ledger.table()}", pytrace=False)  # fmt: skip

    return check
