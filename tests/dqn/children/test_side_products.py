"""Products beside the network's: cuBLASLt against float64 on a GPU, the choice and its workspace everywhere."""

from __future__ import annotations

import dataclasses
import types
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children.iqn import Iqn
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.children.side_products import SideProducts, weight_splits
from foxhunt_rt.dqn.layout import Layer, Segment
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.gemm import LIBRARY, OWN, ChoiceTable, Products
from foxhunt_rt.graph import PlanningRuntime
from foxhunt_rt.kernels import images
from tests.dqn.test_whole_step import CASES, chain, fill, take_step, transitions

#: of the sum of |terms|, as in tests/gemm/test_products.py
RELATIVE = {"fp32": 2e-5, "tf32": 2.0**-9}


def layer(k: int, n: int) -> Layer:
    """A layer of which the sizes alone count."""
    weight = types.SimpleNamespace(shape=(k, n), padded_shape=(k, n), size=k * n)
    return Layer(cast(Segment, weight), cast(Segment, types.SimpleNamespace(size=n)), relu=True)


@pytest.mark.parametrize("rows", [1, 1000, 4096, 66560, 4128 * 32, 131072, 1 << 20])
def test_rows_are_cut_into_equal_long_sums(rows: int) -> None:
    n = weight_splits(rows)
    assert rows % n == 0 and 1 <= n <= 64 and (n == 1 or rows // n >= 1024)
    assert n == 64 or rows % (2 * n) or rows // (2 * n) < 1024, "as many as these rules allow"


def test_a_feature_of_zero_turns_is_exactly_one(runtime: Runtime) -> None:
    """cos 0 = 1, which the gradient of iqn's bias goes by where the library makes that of its weights."""
    taken = take_step(runtime, dataclasses.replace(CASES[0], settings=("iqn.enabled=true",)))
    iqn = next(e for e in taken.learner.extensions if isinstance(e, Iqn))
    cosines = iqn.cosines.to_numpy()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(cosines[:, 0], np.float32(1.0))
    assert np.unique(cosines[:, 1]).size > cosines.shape[0] // 2
    taken.learner.close()


def test_what_is_small_is_ours_and_noted(runtime: Runtime) -> None:
    table = ChoiceTable()
    side = SideProducts(Products(runtime, table), "tf32", "side")
    assert not side.forward_by_library(layer(64, 64), 64) and not side.weights_by_library(layer(64, 64), 64)
    (rows,) = table.used.values()
    assert {key.split(" R ")[0] for key in rows} == {"beside forward", "beside weights"} and all(
        "tf32" in key for key in rows
    )
    assert {choice.use for choice in rows.values()} == {OWN}


def test_a_plan_of_the_memory_counts_a_workspace_of_its_own() -> None:
    """aux.iqn_embed runs beside forward, so it may not share its workspace; what follows it may."""
    if "sm_90" not in images.default().available("adam"):
        pytest.skip("no images for sm_90 are built")
    config = Config().with_set(["network.hidden=256", "network.precision=tf32", "replay.batch=4096", "iqn.enabled=true",
                                "replay.capacity=65536"])  # fmt: skip
    rt = cast(Runtime, PlanningRuntime("sm_90"))
    learner = Learner(rt, config, 48, (5, 3, 3, 3))
    children = {child.name: child for child in learner.graph.children}
    embed, loss, trunk = (children[n].scratch for n in ("aux.iqn_embed", "aux.iqn_gradient", "forward"))
    assert [b.label for b in embed] == ["gemm.workspace.iqn"] == [b.label for b in loss]
    assert [b.label for b in trunk] == ["gemm.workspace.main"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", list(RELATIVE))
def test_the_library_against_float64(runtime: Runtime, precision: str) -> None:
    """Forward with bias and ReLU, and a weight gradient in 16 parts; both twice with the same bits."""
    k, n, rows = 64, 256, 16384
    random = np.random.default_rng(3)
    x, w, b, dy = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, k), (k, n), (n,), (rows, n)))
    side, shape = SideProducts(Products(runtime, ChoiceTable()), precision, "side"), layer(k, n)
    parts = weight_splits(rows)
    dx, dw, db, ddy = (runtime.array(a, "operand") for a in (x, w.ravel(), b, dy))
    y, part = runtime.zeros((rows, n), np.float32, "y"), runtime.zeros(parts * k * n, np.float32, "part")
    plan = runtime.plan("side")
    with plan.child("side", reads=[dx, dw, db, ddy], writes=[y, part], scratch=side.scratch(True)) as child:
        side.forward(child, shape, dx, LayerWeights(dw, db), y, True)
        side.weight_gradient(child, shape, dx, ddy, part)
    graph = plan.build()
    found: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = []
    for _ in range(2):
        graph.launch()
        runtime.synchronize()
        found.append((y.to_numpy(), part.to_numpy()))
    for once, again in zip(*found, strict=True):
        np.testing.assert_array_equal(once.view(np.uint32), again.view(np.uint32))
    wide = [a.astype(np.float64) for a in (x, w, b, dy)]
    terms = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])
    assert (np.abs(found[0][0] - np.maximum(wide[0] @ wide[1] + wide[2], 0.0)) <= RELATIVE[precision] * terms).all()
    for i, got in enumerate(found[0][1].reshape(parts, k, n)):
        of = slice(i * rows // parts, (i + 1) * rows // parts)
        terms = np.abs(wide[0][of]).T @ np.abs(wide[3][of])
        assert (np.abs(got - wide[0][of].T @ wide[3][of]) <= RELATIVE[precision] * terms).all(), f"part {i}"
    graph.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", list(RELATIVE))
def test_a_step_whose_side_products_are_the_librarys(runtime: Runtime, precision: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Everything on; the gradients of iqn and of the blocks are within the precision of those of our own kernels."""
    settings = ["network.hidden=64,64", f"network.precision={precision}", "network.choices=fresh", "replay.batch=512",
                "replay.capacity=2048", "network.window=16", "iqn.enabled=true", "iql.enabled=true", "temporal.enabled=true",
                "attention.enabled=true", "ensemble.enabled=true"]  # fmt: skip
    case = dataclasses.replace(CASES[0], environments=20, inserts=60)
    gradients = []
    for use in (OWN, LIBRARY):
        monkeypatch.setattr(Products, "small", lambda *args: False)
        monkeypatch.setattr(Products, "choose", lambda *args, use=use: use)
        learner = Learner(runtime, Config().with_set(settings), case.state_dim, case.branches)
        fill(learner, chain(transitions(case)))
        learner.step()
        learner.drain()
        names = {child.name: [op.name for op in child.ops] for child in learner.graph.children}
        for child, product in (("aux.iqn_gradient", "gemm"), ("aux.ensemble", "gemm"), ("adam_grad.temporal_past", "gemm"),
                               ("forward.attention_past", "gemm_bias"), ("aux.ensemble_heads", "gemm_bias")):  # fmt: skip
            assert (product in names[child]) == (use == LIBRARY), names
        gradients.append(learner.layout.unpack(learner.grad.grad.to_numpy()))
        assert learner.graph.verify(steps=2).bitwise_equal
        learner.close()
    bound = {"fp32": 1e-4, "tf32": 6e-2}[precision]
    for name, own in gradients[0].items():
        off = np.linalg.norm(gradients[1][name] - own) / max(float(np.linalg.norm(own)), 1e-12)
        assert off <= bound, f"{name} {off:.1e}"
