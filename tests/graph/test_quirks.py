"""The quirk table: what docs/quirks.md says is what the driver at hand answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.graph import quirks

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, str, str, str]]:
    """name -> question, answer of the H200, answer of hostsim, where the code goes by it."""
    return {row[0]: row[1:] for row in ROW.findall((ROOT / "docs" / "quirks.md").read_text())}


def test_every_question_is_in_the_table():
    table = documented()
    assert list(table) == [q.name for q in quirks.QUIRKS]
    for q in quirks.QUIRKS:
        assert (table[q.name][0], table[q.name][3]) == (q.question, q.relies)
        for file in re.findall(r"[\w/]+\.py", q.relies):
            assert (ROOT / "foxhunt_rt" / file).is_file(), f"{q.name} names {file}"


def test_the_driver_answers_as_documented(driver, monkeypatch):
    """On hostsim, and on an H200; another GPU has no column yet."""
    monkeypatch.setenv("FOXHUNT_HOSTSIM", "")  # what it does by default
    found = quirks.probe_quirks()
    column = {"host": 2, "sm_90": 1}.get(found["architecture"])
    if column is None or (found["driver"] == "cuda" and "H200" not in found["device"]):
        pytest.skip(f"docs/quirks.md has no column for {found['device']}")
    assert found["driver"] == driver
    table = documented()
    differ = {q["name"]: (q["answer"], table[q["name"]][column]) for q in found["quirks"]
              if q["answer"] != table[q["name"]][column]}  # fmt: skip
    differ.pop("globaltimer", None) if driver == "hostsim" else None  # the host's clock
    assert not differ
    assert quirks.text(found).count("\n") == len(quirks.QUIRKS)


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")  # JAX, where another test of this process has imported it
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12
def test_a_question_that_ends_its_process_is_an_answer(monkeypatch):
    monkeypatch.setattr(quirks, "TIME_LIMIT_S", 1)
    import os
    import signal
    import time

    assert quirks._in_a_fork(lambda: os.kill(os.getpid(), signal.SIGSEGV) or {}) == {
        "answer": "the process ended with -11"
    }
    assert quirks._in_a_fork(lambda: time.sleep(9) or {}) == {"answer": "no answer in 1 s"}
    assert quirks._in_a_fork(lambda: {"answer": "yes"}) == {"answer": "yes"}


def test_an_unknown_quirk_is_refused():
    with pytest.raises(FoxhuntError, match="no quirk 'nonsense'; known: handle-outside, "):
        quirks.probe_quirks(["nonsense"])
