"""Pictures and facts of a step: children as clusters, gates dashed, colours that say how a child stands in the ledger."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from foxhunt_rt.driver import Stream, capture, memset
from foxhunt_rt.graph import Flag, Runtime, StepGraph

N = 64
SVG = "{http://www.w3.org/2000/svg}"


def build(rt: Runtime) -> StepGraph:
    x, y, z = (rt.zeros(N, np.float32, name) for name in "xyz")
    word = rt.zeros(1, np.uint32, "word")
    plan = rt.plan("seen")
    for name, buffer, when in (("one", x, None), ("two", y, Flag(word))):
        with plan.child(name, reads=[], writes=[buffer], when=when) as child:
            child.launch("add_scalar", (1,), (N,), dict(x=buffer, value=1.0, n=N))
    with Stream(rt.context) as stream, capture(stream) as recording:
        memset(rt.context, z, 0, stream)
    plan.child_from_graph("theirs", recording.graph, reads=[x], writes=[z])
    return plan.build(ungraphed=False)


def standing(step: StepGraph) -> dict[str, str]:
    return {row["name"]: row["isolation"] for row in step.info()["children"]}


def test_a_picture_shows_children_gates_and_isolation(runtime: Runtime) -> None:
    step = build(runtime)
    assert standing(step) == {"one": "isolated", "two": "isolated", "theirs": "foreign"}
    picture = ET.fromstring(step.svg())
    boxes = [box.get("class") for box in picture.iter(f"{SVG}rect") if box.get("class")]
    assert boxes == ["child", "child gated", "foreign"]
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert words == ["one", "add_scalar", "two", "add_scalar", "theirs", "a foreign graph"]
    assert len(list(picture.iter(f"{SVG}path"))) == 1 + len(step.edges)  # and the tip of the arrows
    source = step.dot()
    assert source.count("subgraph cluster_") == 3 and 'label="two when word"; style="filled,dashed"' in source
    assert 'label="theirs"; style="filled"; fillcolor="#f1f1f1"' in source
    step.close()


def test_a_shared_function_is_red_whatever_the_ledger_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with Runtime(isolation="off") as rt:
        given = rt.modules.function
        monkeypatch.setattr(rt.modules, "function", lambda user, kernel: given("everybody", kernel))
        step = build(rt)
        assert standing(step) == {"one": "shared", "two": "shared", "theirs": "foreign"}
        assert 'class="shared"' in step.svg() and 'fillcolor="#fbe9e7"' in step.dot()
        step.close()
