"""The whole step in tf32 and bf16 against the float64 oracle: by cuBLASLt on a GPU, by rounded operands under hostsim.

What rounding costs is measured tensor by tensor as ||g - ref|| / ||ref||. TF32 keeps 11 bits of an operand (error 5e-4 each),
bf16 8 bits (4e-3); but a rounded activation near zero also changes sides of its ReLU, which moves whole rows of a gradient.
So the products are held to the rounding from our own activations and dlogits, and the gradient as a whole to a wider bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children.forward import ONLINE
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.gemm import ChoiceTable
from foxhunt_rt.kernels import abi

from .children.network_case import F64, backward
from .test_whole_step import Case, Taken, fill, reference, take_step, transitions

#: relative error of the products, from our own activations: at most, and at least (else nothing was rounded)
BOUNDS = {"tf32": (2e-3, 2e-5), "bf16": (1.5e-2, 2e-4)}
#: relative error of the gradient against the oracle, whose units may stand on the other side of their ReLU
WHOLE = {"fp32": 2e-5, "tf32": 6e-2, "bf16": 2e-1}


def activations(taken: Taken) -> list[F64]:
    """Our own hidden activations of the pass on s, unpadded."""
    learner, found = taken.learner, []
    for buffer, layer in zip(learner.forward.hidden, learner.layout.layers[:-1], strict=True):
        raw = buffer.to_numpy()[ONLINE]  # type: ignore[attr-defined]
        wide = raw.view(np.uint16).view(ml_dtypes.bfloat16) if raw.dtype == abi.bf16 else raw
        found.append(wide.astype(np.float64)[:, : layer.n])
    return found


def off(found: Mapping[str, npt.NDArray[np.float32]], expected: Mapping[str, F64]) -> dict[str, float]:
    return {name: float(np.linalg.norm(found[name] - ref) / np.linalg.norm(ref)) for name, ref in expected.items()}


def case(precision: str, batch: int) -> Case:
    return Case(precision, 20, (64, 48), (4, 3), 21, batch, (f"network.precision={precision}", "network.choices=fresh"),
                alpha_c51=0.5)  # fmt: skip


@pytest.fixture(scope="module", params=[(p, b) for p in BOUNDS for b in (64, 256)], ids=lambda p: f"{p[0]}-{p[1]}")
def taken(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Taken]:
    result = take_step(runtime, case(*request.param))
    yield result
    result.learner.close()


def test_products_of_the_backward_pass_are_off_by_the_rounding_and_no_more(taken: Taken) -> None:
    learner, layout = taken.learner, taken.learner.layout
    flat, dlogits = learner.grad.grad.to_numpy(), learner.ddqn.dlogits.to_numpy()  # type: ignore[union-attr]
    theta = layout.unpack(taken.before["theta"])
    state = learner.batch.state.to_numpy()[:, : layout.state_dim]
    layers = backward(theta, state, activations(taken), dlogits[:, : layout.head_width].astype(np.float64))
    errors = {}
    for layer, want in zip(layout.layers, layers, strict=True):
        for segment, name in ((layer.weight, "dw"), (layer.bias, "db")):
            got = flat[segment.offset : segment.stop].reshape(segment.padded_shape)[tuple(map(slice, segment.shape))]
            errors[segment.name] = float(np.linalg.norm(got - want[name]) / np.linalg.norm(want[name]))
    print(f"\n{taken.case.name} batch {taken.case.batch}: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()))
    most, least = BOUNDS[taken.case.name]
    assert max(errors.values()) <= most, errors
    if (
        learner.runtime.driver_kind == "hostsim" or taken.case.name == "bf16"
    ):  # tf32 may choose the f32 kernels on a GPU
        assert max(errors.values()) >= least, "nothing was rounded"
    assert not flat[layout.pads()].any(), "pads of the gradient stay zero"


def test_gradient_against_the_oracle(taken: Taken) -> None:
    learner = taken.learner
    errors = off(learner.layout.unpack(learner.grad.grad.to_numpy()), reference(taken).gradient)
    print(f"\n{taken.case.name} batch {taken.case.batch}: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()))
    assert max(errors.values()) <= WHOLE[taken.case.name], errors


def test_loss_is_that_of_the_rounded_network(taken: Taken) -> None:
    assert taken.record["loss"] == pytest.approx(reference(taken).loss, rel=BOUNDS[taken.case.name][0])
    norm = np.sqrt((taken.learner.grad.grad.to_numpy().astype(np.float64) ** 2).sum())
    assert taken.record["grad_norm"] == pytest.approx(norm, rel=1e-5), "norm and gradient are of one making"
    assert np.sqrt(taken.learner.grad.norm_part.to_numpy().sum()) == pytest.approx(norm, rel=1e-6)


def test_all_ways_to_run_it_agree_bit_for_bit(taken: Taken) -> None:
    result = taken.learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)


def test_choices_are_recorded_by_shape(taken: Taken) -> None:
    (rows,) = taken.learner.choices["machines"].values()
    layers = [key for key in rows if key.startswith("layer ")]
    assert len(layers) == 2 * len(taken.learner.layout.layers) and all(taken.case.name in key for key in layers)
    assert taken.learner.graph.plan.notes["choices"] == taken.learner.choices
    if taken.learner.runtime.driver_kind == "hostsim":
        assert {rows[key]["use"] for key in rows} == {"own"} and {rows[key]["why"] for key in rows} == {"hostsim"}


def test_a_pinned_table_gives_the_same_bits(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A second learner that may measure nothing."""
    first = take_step(runtime, case("tf32", 64))
    table = first.learner.products.gemm.table  # type: ignore[union-attr]
    folder = tmp_path_factory.mktemp("run")
    ChoiceTable(folder / "choices.json")._save()
    for machine, rows in table.used.items():
        stored = ChoiceTable(folder / "choices.json")
        for key, choice in rows.items():
            stored.put(machine, key, choice)
    pinned = case("tf32", 64)
    settings = (*pinned.settings[:1], f"network.choices={folder}")
    again = take_step(runtime, Case("tf32", 20, (64, 48), (4, 3), 21, 64, settings, alpha_c51=0.5))
    for name in ("theta", "m", "v"):
        a, b = (getattr(t.learner.adam, name).to_numpy().view(np.uint32) for t in (first, again))
        np.testing.assert_array_equal(a, b)
    for t in (first, again):
        t.learner.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_large_layers_are_measured_against_the_library(runtime: Runtime, precision: str) -> None:
    """And learn what the oracle says, at a batch where every product is split. In fp32 our own kernels may be the faster ones."""
    large = Case(precision, 48, (256, 256), (5, 3, 3, 3), 51, 512,
                 (f"network.precision={precision}", "network.choices=fresh", "replay.capacity=1024"), environments=16,
                 inserts=60, alpha_c51=0.5)  # fmt: skip
    step = take_step(runtime, large)
    products = step.learner.products
    assert products.gemm is not None
    measured = [c.us for rows in products.gemm.table.used.values() for c in rows.values() if len(c.us) > 1]
    assert measured and all(min(us.values()) > 0.0 for us in measured)
    if precision != "fp32":
        assert any(products.forward) and any(products.backward), products
    errors = off(step.learner.layout.unpack(step.learner.grad.grad.to_numpy()), reference(step).gradient)
    print(f"\n{precision}: worst {max(errors.values()):.1e}, forward {products.forward}, backward {products.backward}")
    assert max(errors.values()) <= WHOLE[precision], errors
    assert step.learner.graph.verify(steps=2).bitwise_equal
    step.learner.close()


@pytest.mark.slow
def test_the_production_profile_trains_under_hostsim(runtime: Runtime) -> None:
    """Its precision is tf32; a few steps at a tenth of its batch."""
    config = Config.profile("production").with_set(["replay.capacity=1024", "replay.batch=128", "her.achieved_column=0",
                                                    "her.goal_column=1"])  # fmt: skip
    learner = Learner(runtime, config, 24, (3, 2, 2, 2))
    rows = transitions(Case("p", 24, (1,), (3, 2, 2, 2), 51, 128))
    fill(learner, rows)
    for _ in range(3):
        learner.step()
    records = learner.drain()
    assert len(records) == 3 and np.isfinite(records["loss"]).all() and (records["grad_norm"] > 0).all()
    learner.close()
