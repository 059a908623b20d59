"""Extending the step: a loss with parameters of its own against float64 autodiff, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime, kernels
from foxhunt_rt.dqn import Extension, ExtensionError, Learner, NetworkLayout, ParameterGroup, StepView, Tensor
from foxhunt_rt.dqn.layout import GROUP_PAD, LayoutError
from foxhunt_rt.kernels import images

from . import oracle
from .test_whole_step import CASES, Case, Taken, batch_of, chain, fill, reference, take_step, transitions

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extend_step"
COEFFICIENT = 0.7


@pytest.fixture(scope="module")
def return_head(runtime: Runtime) -> Iterator[Any]:
    """The class of the example, with its kernel compiled for the device."""
    if shutil.which("g++" if runtime.device.architecture == "host" else "nvcc") is None:
        pytest.skip("no compiler for the example's kernel")
    before = list(images._added), list(kernels.abi._added)
    kernels.add(kernels.compile(EXAMPLE / "return_head.cu", runtime.device.architecture))
    sys.path.insert(0, str(EXAMPLE))
    import extend_step

    yield extend_step.ReturnHead
    sys.path.remove(str(EXAMPLE))
    images._added[:], kernels.abi._added[:] = before
    kernels.abi.default.cache_clear()


def learner_of(rt: Runtime, case: Case, *extensions: Extension) -> Learner:
    learner = Learner(rt, case.config(), case.state_dim, case.branches, keep_target=True, extensions=extensions)
    fill(learner, chain(transitions(case)))
    learner.set(alpha_c51=case.alpha_c51)
    return learner


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[7]], ids=lambda case: case.name)
def test_gradients_of_both_losses_against_autodiff(runtime: Runtime, return_head: Any, case: Case) -> None:
    """Heads and trunk: d(core + coefficient * head) by JAX in float64; the head's error is in the record."""
    taken = take_step(runtime, case, extensions=(return_head(COEFFICIENT),))
    learner, before, record = taken.learner, taken.before, taken.record

    everything = learner.layout.unpack(before["theta"])
    params = {
        name: array.astype(np.float64) for name, array in everything.items() if not name.startswith("return_head")
    }
    network = dataclasses.replace(learner.layout, groups=())
    flat = before["theta"][: network.size], before["target"][: network.size]
    core = reference(_of_network(taken, network, *flat))
    batch = batch_of(taken)

    def loss(p: Any, weight: Any, bias: Any) -> Any:
        x = batch.state
        for i in range(len(case.hidden)):
            x = jax.nn.relu(x @ p[f"trunk.{i}.weight"] + p[f"trunk.{i}.bias"])
        return COEFFICIENT * 0.5 * (((x @ weight)[:, 0] + bias[0] - batch.ret) ** 2).mean()

    weight = everything["return_head.weight"].astype(np.float64)
    bias = everything["return_head.bias"].astype(np.float64)
    value, gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(params, weight, bias)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    assert record["return_mse"] == pytest.approx(float(value) * 2.0 / COEFFICIENT, rel=1e-5)
    for name in core.gradient:
        more = np.asarray(gradient[0][name])
        expected = core.gradient[name] + more
        # of the added terms only the result is known here; what they cancel is bounded by the largest of them
        terms = core.magnitude[name] + np.abs(more).max() * case.batch**0.5
        print(oracle.compare(name, found[name], expected, terms))
        if np.abs(more).max() > 0.0:
            with pytest.raises(AssertionError):  # the core's gradient alone
                oracle.compare(name, core.gradient[name], expected, terms)
    for name, ref in (("return_head.weight", gradient[1]), ("return_head.bias", gradient[2])):
        print(oracle.check_gradient(name, found[name], ref, np.abs(ref).max() * case.batch**0.5))
    assert np.abs(np.asarray(gradient[0]["trunk.0.weight"])).max() > 1e-4, "the head's gradient reaches the trunk"
    assert not learner.grad.grad.to_numpy()[learner.layout.pads()].any()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


def _of_network(taken: Taken, network: NetworkLayout, theta: Any, target: Any) -> Taken:
    """The same step, seen by the oracle of the network alone."""

    class Seen:
        layout = network
        batch, ddqn, config, depth = taken.learner.batch, taken.learner.ddqn, taken.learner.config, taken.learner.depth

    return Taken(taken.case, Seen(), taken.rows, {**taken.before, "theta": theta, "target": target}, taken.record)  # type: ignore[arg-type]


class Flat(Extension):
    """Touches nothing of the learner: one parameter group of its own, whose gradient is zero, and one metric."""

    name, metrics = "flat", ("flat_metric",)

    def __init__(self, **left_out: bool) -> None:
        self.left_out = left_out

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [ParameterGroup("flat", (Tensor("table", (5, 3), True, 0.5),), 2.0, 1.0)]

    def record(self, step: StepView) -> None:
        group = step.group("flat")
        grad = group.grad("table")
        with step.child("flat", after="ddqn", reads=[], writes=[*group.gradient, step.metric("flat_metric")]) as child:
            if not self.left_out.get("metric"):
                child.memset(step.metric("flat_metric"), 1.5)
            if not self.left_out.get("grad"):
                child.memset(grad, 0.25)
            if not self.left_out.get("squares"):
                group.record_squares(child)


def test_the_network_trains_to_the_same_bits_beside_an_extension(runtime: Runtime) -> None:
    found = []
    for extensions in ((), (Flat(),)):
        learner = learner_of(runtime, CASES[1], *extensions)
        for _ in range(5):
            learner.step()
        records = learner.drain()
        network = learner.adam.theta.to_numpy()[: learner.layout.network_size]
        found.append((network.tobytes(), learner.replay.priority.to_numpy().tobytes()))
        if extensions:
            assert (records["flat_metric"] == 1.5).all() and len(records) == 5
            assert learner.params()["flat.table"].shape == (5, 3)
        learner.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("left_out", "text"), [("metric", "no child writes the metric flat_metric"),
                                                ("grad", "no child writes the whole of its gradient"),
                                                ("squares", "no child squares its gradient")])  # fmt: skip
def test_what_was_announced_and_is_never_written_is_refused(runtime: Runtime, left_out: str, text: str) -> None:
    with pytest.raises(ExtensionError, match=text):
        learner_of(runtime, CASES[1], Flat(**{left_out: True}))


def test_clashes_and_wrong_places_are_refused(runtime: Runtime) -> None:
    class Nameless(Extension):
        pass

    class Lost(Extension):
        name = "lost"

        def record(self, step: StepView) -> None:
            step.child("lost", [], [], after="c51")

    with pytest.raises(ExtensionError, match="give each a name of its own"):
        learner_of(runtime, CASES[1], Flat(), Flat())
    with pytest.raises(ExtensionError, match="give each a name of its own"):
        learner_of(runtime, CASES[1], Nameless())
    with pytest.raises(Exception, match="has no child c51 to stand beside; its children: counters, per_sample"):
        learner_of(runtime, CASES[1], Lost())


def test_a_reset_is_a_new_start(runtime: Runtime, return_head: Any) -> None:
    """Fold k alone equals fold k in sequence, with an extension's parameters, moments and step counter."""

    def run(learner: Learner) -> tuple[npt.NDArray[Any], ...]:
        fill(learner, chain(transitions(CASES[1])))
        for _ in range(4):
            learner.step()
        learner.drain()
        return tuple(getattr(learner.adam, name).to_numpy() for name in ("theta", "m", "v", "target"))

    learner = Learner(runtime, CASES[1].config(), CASES[1].state_dim, CASES[1].branches, extensions=[return_head(1.0)])
    first = run(learner)
    learner.reset(CASES[1].seed)
    for a, b in zip(first, run(learner), strict=True):
        np.testing.assert_array_equal(a, b)
    learner.close()


def test_layout_of_groups() -> None:
    groups = (ParameterGroup("a", (Tensor("bias", (3,), False, 0.0), Tensor("weight", (5, 3), True, 1.0)), 1.0, None),
              ParameterGroup("b", (Tensor("w", (1, 17), True, 1.0),), 1.0, 2.0))  # fmt: skip
    plain = NetworkLayout(7, (9,), (2, 3), 5)
    layout = dataclasses.replace(plain, groups=groups)
    a, b = layout.group_segments["a"], layout.group_segments["b"]
    assert [s.name for s in a] == ["a.weight", "a.bias"] and a[0].offset % GROUP_PAD == b[0].offset % GROUP_PAD == 0
    assert (
        layout.network_size == plain.size
        and layout.size == b[-1].stop
        and layout.parameters == plain.parameters + 18 + 17
    )
    tensors = layout.init(3)
    same = plain.init(3)
    assert all((tensors[name] == array).all() for name, array in same.items()) and set(tensors) - set(same) == {
        "a.bias", "a.weight", "b.w"}  # fmt: skip
    assert not tensors["a.bias"].any() and np.abs(tensors["a.weight"]).max() <= 1.0
    again = layout.unpack(layout.pack(tensors))
    assert all((again[name] == tensors[name]).all() for name in tensors)
    assert not layout.pack(tensors)[layout.pads()].any() and layout.pads().sum() == layout.size - layout.parameters
    for wrong in ({"tensors": ()}, {"lr_factor": 0.0}, {"max_grad_norm": 0.0}):
        with pytest.raises(LayoutError):
            dataclasses.replace(groups[0], **wrong)
    with pytest.raises(LayoutError, match="a name of its own"):
        dataclasses.replace(plain, groups=(groups[0], groups[0]))
