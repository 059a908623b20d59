"""Children made of parts: parts run, are verified and timed by themselves; lists, tables and pictures show children in order."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.graph import Runtime, StepGraph, outline

N = 64
SVG = "{http://www.w3.org/2000/svg}"
#: Recorded in this order; `keep.early` is a part of a child that is told last, `more` one that the outline does not know.
RECORDED = ["first", "keep.early", "aux.left", "aux.right", "aux.both", "more", "last", "keep.late"]
OUTLINE = ("first", "unused", "aux", "last", "keep")
SHOWN = [("first", [0]), ("aux", [2, 3, 4]), ("more", [5]), ("last", [6]), ("keep", [1, 7])]


@pytest.fixture
def step(runtime: Runtime) -> Iterator[StepGraph]:
    """`aux.both` follows `aux.left` and `aux.right`, which run side by side; nothing else touches anything of another."""
    buffers = {name: runtime.zeros(N, np.float32, name) for name in RECORDED}
    plan = runtime.plan("divided")
    plan.outline = OUTLINE
    for name in RECORDED:
        reads = [buffers["aux.left"], buffers["aux.right"]] if name == "aux.both" else []
        with plan.child(name, reads=reads, writes=[buffers[name]]) as child:
            child.launch("add_scalar", (1,), (N,), dict(x=buffers[name], value=1.0, n=N))
            if name == "aux.left":
                child.launch("add_scalar", (1,), (N,), dict(x=buffers[name], value=2.0, n=N))
    with plan.epilogue("end", writes=[buffers["first"]]) as child:
        child.memset(buffers["first"], 0)
    built = plan.build()
    yield built
    built.close()


def test_children_stand_as_the_outline_says_and_others_where_they_run() -> None:
    assert outline.arrange(RECORDED, OUTLINE) == SHOWN
    assert outline.arrange(["b", "a"], ()) == [("b", [0]), ("a", [1])]
    assert outline.arrange(["x", "b", "y", "a"], ("a", "b")) == [("x", [0]), ("a", [3]), ("b", [1]), ("y", [2])]
    assert outline.arrange(["a.one"], ("a",)) == [("a", [0])]


def test_a_child_has_the_sums_of_its_parts_and_the_chain_through_them(step: StepGraph) -> None:
    info = step.info()
    rows = {row["name"]: row for row in info["children"]}
    assert list(rows) == [name for name, _ in SHOWN] and [row["name"] for row in info["epilogue"]] == ["end"]
    aux = rows["aux"]
    assert [part["name"] for part in aux["parts"]] == ["aux.left", "aux.right", "aux.both"]
    assert (aux["nodes"], aux["kernel_nodes"], aux["chain"]) == (4, 4, 3)  # left's two, then both's one
    assert aux["kernels"] == ["add_scalar"] and aux["isolation"] == "isolated"
    assert aux["writes"] == ["aux.left", "aux.right", "aux.both"]
    assert rows["keep"]["chain"] == 1 and rows["first"]["parts"] == []  # side by side; not divided
    assert [row["name"] for row in outline.flat(info["children"])] == [RECORDED[j] for _, at in SHOWN for j in at]
    assert info["edges"][:2] == [["first", "end"], ["keep.early", "end"]] and ["aux.left", "aux.both"] in info["edges"]
    assert info["nodes"] == len(RECORDED) + 2


def test_parts_are_verified_by_name(step: StepGraph) -> None:
    assert step.verify().bitwise_equal
    found = step.verify(plant="aux.right")
    assert (found.bitwise_equal, found.child) == (False, "aux.right")
    with pytest.raises(FoxhuntError, match=r"no child 'aux' .* aux\.left, aux\.right"):
        step.verify(plant="aux")


def test_a_profile_has_children_with_their_parts(step: StepGraph) -> None:
    found = step.profile(3)
    assert [c.name for c in found.children] == [*(name for name, _ in SHOWN), "end"]
    aux = found.children[1]
    assert [p.name for p in aux.parts] == ["aux.left", "aux.right", "aux.both"]
    assert aux.kernels == sum(p.kernels for p in aux.parts) == 4 and aux.chain == 3
    assert aux.median_us >= max(p.median_us for p in aux.parts) and aux.start_us <= min(p.start_us for p in aux.parts)
    names = [line.split()[0] for line in found.text().splitlines()[2:]]
    assert names[:5] == ["first", "aux", "aux.left", "aux.right", "aux.both"]
    spans = [e["name"] for e in found.trace()["traceEvents"] if e["ph"] == "X" and e["cat"] == "child"]
    assert sorted(spans) == sorted([*RECORDED, "end"])  # parts, each once


def test_pictures_frame_the_parts_of_a_child(step: StepGraph) -> None:
    picture = ET.fromstring(step.svg())
    boxes = [box.get("class") for box in picture.iter(f"{SVG}rect") if box.get("class")]
    assert boxes.count("child") == len(RECORDED) and boxes.count("frame") == 3  # aux in two layers, keep in one
    source = step.dot()
    assert source.count("subgraph cluster_of_") == 2 and source.count("subgraph cluster_") == 2 + len(RECORDED) + 1
    assert source.count("{") == source.count("}")
    inside = source[source.index('label="keep"') :]
    assert inside.index('label="keep.early"') < inside.index('label="keep.late"') < inside.index("->")
