"""Every public method does to the driver what its docstring says; docs/legality.md is read from the same docstrings.

Each case of legality_cases.py runs twice: traced, and inside a capture of the runtime's stream.
"""

from __future__ import annotations

import re

import legality
import pytest

from foxhunt_rt import driver

from .legality_cases import CASES, World
from .legality_harness import Trace, in_a_capture

ENTRIES = {entry.name: entry for entry in legality.entries()}
SILENT = {"capture": "legal", "synchronizes": "no", "allocates": "no"}
#: What a method may ask although its docstring is silent.
QUERIES = re.compile(r"Get|Is[A-Z]|Query|ElapsedTime|TotalMem")
#: Do what their argument does.
AS_TOLD = {"driver.call", "Context.call"}


def test_every_public_name_has_a_case() -> None:
    cases = {name.partition("#")[0] for name in CASES}
    assert sorted(set(ENTRIES) - cases) == [], "add a case to legality_cases.py"
    assert sorted(cases - set(ENTRIES)) == [], "these are gone: remove their cases"


def test_the_page_is_what_the_docstrings_say() -> None:
    assert legality.PAGE.read_text() == legality.page(), "run python tools/legality.py"


@pytest.mark.parametrize("name", ENTRIES)
def test_an_answer_is_one_of_few(name: str) -> None:
    facts = ENTRIES[name].facts
    if facts is None:
        assert not re.search(r"(?i)in a capture:|not legal (inside|in|while)|does not synchronize", ENTRIES[name].doc), (
            "the docstring speaks of it without the sentence that tools/legality.py reads")  # fmt: skip
        return
    assert first(facts["capture"]) in ("legal", "recorded", "refused")
    for question in ("synchronizes", "allocates"):
        assert first(facts[question]) in ("yes", "no", "may")
        assert first(facts[question]) != "may" or "," in facts[question], "say when"


def first(answer: str) -> str:
    return answer.partition(",")[0]


@pytest.mark.hostsim
@pytest.mark.parametrize("name", ENTRIES)
def test_the_driver_calls_are_those_it_admits(name: str, world: World) -> None:
    facts = ENTRIES[name].facts
    expected = facts or SILENT
    traces = [Trace(CASES[case](world)) for case in CASES if case.partition("#")[0] == name]
    for question in ("synchronizes", "allocates"):
        found = {getattr(trace, question) for trace in traces}
        answer, _, detail = expected[question].partition(", ")
        if answer == "may":
            wanted = {False} if "GPU" in detail else {True, False}
        else:
            wanted = {answer == "yes" and "mapped memory" not in detail.partition(" and ")[0]}
        assert found == wanted, (
            f"{name} {question}: {expected[question]}, but its calls are {[t.calls for t in traces]}"
        )
    if facts is None and name not in AS_TOLD:
        assert not [c for trace in traces for c in trace.calls if not QUERIES.search(c)], "the docstring is silent"


@pytest.mark.parametrize("name", ENTRIES)
def test_inside_a_capture(name: str, world: World) -> None:
    expected = (ENTRIES[name].facts or SILENT)["capture"]
    found = in_a_capture(world.rt, CASES[name](world))
    world.rt.synchronize()
    assert found == first(expected), expected


@pytest.mark.hostsim
@pytest.mark.parametrize(
    "name", [n for n, e in ENTRIES.items() if e.facts and e.facts["synchronizes"] == "yes, by mapped memory"]
)
def test_waiting_by_mapped_memory_is_waiting(name: str, world: World) -> None:
    """No synchronizing call, and yet what was queued before is done afterwards."""
    sim = driver.hostsim()
    assert sim is not None
    sim.fxHostsimConfigure(b"depth", 10_000)
    try:
        run = CASES[name](world)
        world.learner.graph.launch()  # `Learner.step` would look for records, which lets queued work run
        world.learner.launched += 1
        assert not world.learner.records.ring.host["sequence"].max() >= world.learner.launched
        run()
        assert world.learner.records.next_step == world.learner.launched
    finally:
        sim.fxHostsimConfigure(b"depth", 2)
