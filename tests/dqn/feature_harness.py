"""What the tests of every feature of the step ask: what it adds when on and off, whether it resumes and starts anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn import CheckpointError, Extension, Learner
from foxhunt_rt.dqn.learner_state import check_state, read_state, write_state

from .test_whole_step import CASES, chain, fill, transitions

CASE = CASES[1]
E = TypeVar("E", bound=Extension)


def learner(rt: Runtime, settings: tuple[str, ...] = (), *, rows: bool = True) -> Learner:
    """A small learner of odd sizes, its replay filled."""
    made = Learner(rt, CASE.config().with_set([*settings]), CASE.state_dim, CASE.branches)
    if rows:
        fill(made, chain(transitions(CASE)))
    return made


def extension(of: Learner, kind: type[E]) -> E:
    """The learner's extension of a class."""
    return next(e for e in of.extensions if isinstance(e, kind))


def run(rt: Runtime, settings: tuple[str, ...], steps: int) -> npt.NDArray[Any]:
    """Records of so many steps."""
    made = learner(rt, settings)
    while made.launched < steps:
        made.step()
    records = made.drain()
    made.close()
    return records


@dataclass(frozen=True)
class Footprint:
    """What a built step is made of."""

    nodes: int
    order: tuple[str, ...]  # its graph children, parts of children among them
    modules: frozenset[str]  # images by user
    bytes: int  # device memory
    edges: frozenset[tuple[str, str]]  # between its graph children

    @property
    def children(self) -> set[str]:
        return set(self.order)


def footprint(rt: Runtime, settings: tuple[str, ...]) -> Footprint:
    """Of a learner in a runtime of its own."""
    with Runtime(rt.device.ordinal) as own:
        made = learner(own, settings, rows=False)
        info, order = made.graph.info(), tuple(child.name for child in made.graph.plan.children)
        modules = frozenset(entry.module.name for entry in own.ledger.entries())
        memory = {b.allocation.ptr: b.allocation.nbytes for b in made.graph.buffers()}
        edges = frozenset((before, then) for before, then in info["edges"])
        found = Footprint(info["nodes"], order, modules, sum(memory.values()), edges)
        made.close()
    return found


def contents(of: Learner) -> dict[str, bytes]:
    """Every buffer that a step hands on, and the replay's priorities."""
    out = {name: buffer.to_numpy().tobytes() for name, buffer in of.persistent().items()}
    return {**out, "priority": of.replay.priority.to_numpy().tobytes()}


def without_times(records: npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Records but for their clocks, as plain values."""
    names = [n for n in records.dtype.names or () if n not in ("started_ns", "ended_ns")]
    return [{name: record[name].tobytes() for name in names} for record in records]


def check_resume(rt: Runtime, settings: tuple[str, ...], before: int = 7, after: int = 6,
                 prepare: Callable[[Learner], None] | None = None) -> None:  # fmt: skip
    """A learner from a checkpoint goes on bit for bit: state and records. ``prepare`` is called before its first step."""
    one = learner(rt, settings)
    if prepare:
        prepare(one)
    for _ in range(before):
        one.step()
    tensors, facts = read_state(one)
    two = learner(rt, settings, rows=False)
    write_state(two, tensors, facts)
    one.take()
    records = []
    for each in (one, two):
        for _ in range(after):
            each.step()
        records.append(without_times(each.drain()))
    assert records[0] == records[1] and len(records[0]) == after
    first, second = contents(one), contents(two)
    assert [name for name in first if first[name] != second[name]] == []
    one.close()
    two.close()


def check_reset(rt: Runtime, settings: tuple[str, ...], steps: int = 6,
                prepare: Callable[[Learner], None] | None = None) -> None:  # fmt: skip
    """A fold after a reset is the fold of a new learner, bit for bit: state and records. ``prepare`` begins each."""
    one = learner(rt, settings)
    found = []
    for _ in range(2):
        if prepare:
            prepare(one)
        for _ in range(steps):
            one.step()
        records = without_times(one.drain())
        found.append((contents(one), records))
        one.reset(CASE.seed)
        fill(one, chain(transitions(CASE)))
    assert found[0][1] == found[1][1]
    assert [name for name in found[0][0] if found[0][0][name] != found[1][0][name]] == []
    one.close()


__all__ = ["CASE", "Footprint", "check_reset", "check_resume", "extension", "footprint", "learner", "run"]


def check_refused(rt: Runtime, settings: tuple[str, ...], *others: tuple[tuple[str, ...], str]) -> None:
    """A checkpoint of a learner of ``settings`` is refused by the others: pairs of settings and what the error says."""
    one = learner(rt, settings, rows=False)
    tensors, facts = read_state(one)
    for more, text in others:
        other = learner(rt, more, rows=False)
        with pytest.raises(CheckpointError, match=text):
            check_state(other, tensors, facts)
        other.close()
    one.close()
