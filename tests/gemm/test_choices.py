"""The table of measured choices: kept, pinned, cleared, carried by a run, and never mistaken for another machine's."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from foxhunt_rt.gemm import LIBRARY, OWN, Algorithm, Choice, ChoiceError, ChoiceTable, machine_table

ALGORITHM = Algorithm((2**64 - 1, 3, 0, 0, 0, 0, 0, 1 << 53 | 1), 4096, {"id": 66, "split_k": -1})
CHOICE = Choice(LIBRARY, {"0": 12.345, "1": 9.5}, ALGORITHM)


def test_a_choice_survives_a_file_bit_for_bit(tmp_path: Path) -> None:
    table = ChoiceTable(tmp_path / "deep" / "products.json")
    table.put("machine", "key", CHOICE)
    again = ChoiceTable(tmp_path / "deep" / "products.json")
    found = again.get("machine", "key")
    assert found is not None and found.algorithm == ALGORITHM and found.use == LIBRARY
    assert again.get("machine", "other") is None and again.get("another machine", "key") is None
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["products.json"]


def test_what_goes_with_a_run_is_what_it_used(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    first = ChoiceTable(path)
    first.put("machine", "used", CHOICE)
    first.put("machine", "unused", Choice(OWN, {}))
    run = ChoiceTable(path)
    run.get("machine", "used")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "choices.json").write_text(json.dumps(run.to_dict()))
    pinned = ChoiceTable.load(folder)
    assert pinned.get("machine", "used").algorithm == ALGORITHM  # type: ignore[union-attr]
    with pytest.raises(ChoiceError, match=r"no choice for 'unused' on 'machine'.*clear network.choices"):
        pinned.get("machine", "unused")
    with pytest.raises(ChoiceError, match="it knows machine"):
        pinned.get("a newer driver", "used")


def test_clearing_forgets_one_machine_or_all(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    table = ChoiceTable(path)
    table.put("a", "key", CHOICE)
    table.put("b", "key", CHOICE)
    table.clear("a")
    assert ChoiceTable(path).get("a", "key") is None and ChoiceTable(path).get("b", "key") is not None
    table.clear()
    assert ChoiceTable(path).get("b", "key") is None


@pytest.mark.parametrize(
    "text", ["{}", "[", '{"format": 99, "machines": {}}', '{"format": 1, "machines": {"m": {"k": {}}}}']
)
def test_a_file_that_is_no_table_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(ChoiceError, match="odd.json"):
        ChoiceTable.load(path)
    with pytest.raises(ChoiceError, match="does not exist"):
        ChoiceTable.load(tmp_path / "absent")


def test_a_table_that_cannot_be_written_is_said_once_and_holds_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    table = ChoiceTable(tmp_path / "file" / "products.json")  # a file where a folder would have to be
    with caplog.at_level(logging.WARNING, logger="foxhunt_rt.gemm"):
        table.put("machine", "key", CHOICE)
        table.put("machine", "more", CHOICE)
    assert len(caplog.records) == 1 and "cannot be written" in caplog.text
    assert table.get("machine", "key") is not None


def test_the_users_table_stands_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOXHUNT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine_table() == tmp_path / "foxhunt-rt" / "products.json"
    monkeypatch.setenv("FOXHUNT_CACHE", str(tmp_path / "own"))
    assert machine_table() == tmp_path / "own" / "products.json"
