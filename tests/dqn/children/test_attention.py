"""The attention block: the gradient of the whole step against float64 autodiff, alone and behind temporal; its metrics."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.children.attention import Attention

from .. import feature_harness as harness
from .. import oracle
from ..mamba_oracle import mamba
from ..test_blocks import reference_with_blocks
from ..test_whole_step import CASES, Case, Taken, take_step
from ..windows_oracle import windows_of

ON = ("attention.enabled=true",)
SMALL = (*ON, "network.window=5", "attention.heads=3", "attention.head_dim=5")
BOTH = (*SMALL, "temporal.enabled=true", "temporal.heads=2", "temporal.head_dim=3", "temporal.state_dim=5")


def attention(p: Any, windows: tuple[Any, Any], x: Any, *, heads: int, head_dim: int) -> Any:
    """Vaswani 2017 for one query a row, with the distance penalties of Press 2022: (B, S)."""
    inner = heads * head_dim
    slopes = jnp.array([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])

    def one(states: Any, length: Any, state: Any) -> Any:
        window = states.shape[0]
        q = (state @ p["attention.q_proj"]).reshape(heads, head_dim)
        kv = states @ p["attention.kv_proj"]
        k, v = (kv[:, i * inner : (i + 1) * inner].reshape(window, heads, head_dim) for i in (0, 1))
        distance = jnp.arange(window - 1, -1, -1)
        score = jnp.einsum("hd,thd->ht", q, k) / math.sqrt(head_dim) - slopes[:, None] * distance
        score = jnp.where(distance < length, score, -jnp.inf)
        return state + jnp.einsum("ht,thd->hd", jax.nn.softmax(score, -1), v).reshape(-1) @ p["attention.out_proj"]

    return jax.vmap(one)(windows[0], windows[1], x)


def blocks_of(taken: Taken) -> tuple[Any, ...]:
    t, a = taken.learner.config.temporal, taken.learner.config.attention
    found: list[Any] = []
    if t.enabled:
        found.append(partial(mamba, heads=t.heads, head_dim=t.head_dim, state_dim=t.state_dim, conv=t.conv))
    return (*found, partial(attention, heads=a.heads, head_dim=a.head_dim))


def magnitudes(taken: Taken, expected: oracle.Result) -> dict[str, npt.NDArray[np.float64]]:
    """Of the blocks' gradients: every row's and output's own term, by the Jacobian, without cancellation between them."""
    learner = taken.learner
    params = {k: v.astype(np.float64) for k, v in learner.layout.unpack(taken.before["theta"]).items()}
    own = {k: v for k, v in params.items() if k.startswith(("temporal.", "attention."))}
    (states, length), _ = windows_of(taken.rows, learner.batch.index.to_numpy(), learner.config.replay.n_step,
                                     learner.config.network.window)  # fmt: skip
    settings = dataclasses.replace(oracle.Settings((2,), 2, -1.0, 1.0, 0.0, 0.0, 0.0), blocks=blocks_of(taken))
    of_row = lambda p, s, n: oracle.trunk_input(p, (s[None], n[None]), settings)[0]  # noqa: E731
    found = jax.jit(jax.vmap(jax.jacrev(of_row), (None, 0, 0)))(own, states, length)
    return {k: np.einsum("rs...,rs->...", np.abs(np.asarray(j)), expected.input_magnitude) for k, j in found.items()}


@pytest.mark.timeout(400)  # JAX compiles for seconds, on a busy machine for minutes
@pytest.mark.parametrize(("case", "settings"), [
    (CASES[4], BOTH), pytest.param(CASES[1], SMALL, marks=pytest.mark.slow),
    pytest.param(CASES[3], (*ON, "network.window=1", "attention.heads=1"), marks=pytest.mark.slow),
], ids=lambda v: v.name if isinstance(v, Case) else "")  # fmt: skip
def test_gradients_of_the_whole_step(runtime: Runtime, case: Case, settings: tuple[str, ...]) -> None:
    taken = take_step(runtime, dataclasses.replace(case, settings=(*case.settings, *settings)))
    learner, layout = taken.learner, taken.learner.layout
    expected = reference_with_blocks(taken, blocks_of(taken), learner.config.network.window)
    magnitude = {**expected.magnitude, **magnitudes(taken, expected)}
    flat = learner.grad.grad.to_numpy()
    found = layout.unpack(flat)
    assert set(found) == set(expected.gradient)
    for name, array in found.items():
        print(oracle.compare(name, array, expected.gradient[name], magnitude[name]))
        if np.abs(expected.gradient[name]).max() > 0.0:
            with pytest.raises(AssertionError):
                oracle.compare(name, np.zeros_like(array), expected.gradient[name], magnitude[name])
    assert all(np.abs(expected.gradient[f"attention.{t}"]).max() > 0.0 for t in ("kv_proj", "out_proj"))
    assert not flat[layout.pads()].any()
    if settings is BOTH:
        result = learner.graph.verify(steps=2)
        assert result.bitwise_equal, str(result)
        assert not learner.graph.verify(steps=1, plant="adam_grad.attention").bitwise_equal
        edges = {tuple(edge) for edge in learner.graph.info()["edges"]}
        assert ("per_sample.windows", "forward.attention_past") in edges
        assert (
            not {("forward.temporal", "forward.attention_past"), ("forward.attention_past", "forward.temporal")} & edges
        )
    learner.close()


def test_off_adds_nothing_and_on_adds_parts(runtime: Runtime) -> None:
    off, on = (harness.footprint(runtime, settings) for settings in ((), SMALL))
    assert on.children - off.children == {"per_sample.windows", "forward.attention_past", "forward.attention",
                                          "adam_grad.attention", "adam_grad.attention_past",
                                          "adam_grad.attention_metrics"}  # fmt: skip
    assert on.nodes == off.nodes + 11 and on.bytes > off.bytes
    both = harness.footprint(runtime, BOTH)
    assert {("adam_grad.attention", "adam_grad.temporal"), ("adam_grad.attention_past", "adam")} <= both.edges
    assert ("adam_grad.attention_past", "adam_grad.temporal") not in both.edges


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, BOTH, before=3, after=2)
    harness.check_reset(runtime, SMALL, steps=2)
    harness.check_refused(runtime, (*SMALL, "attention.heads=3"), ((*SMALL, "attention.heads=2"), r"attention\.heads"))


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    """A louder out_proj raises the ratio; indifferent queries leave the penalties alone; sharp ones lower the entropy."""

    def measured(name: str = "attention.q_proj", factor: float = 1.0) -> dict[str, float]:
        def prepare(learner: Any) -> None:
            tensors = learner.params()
            tensors[name] = tensors[name] * np.float32(factor)
            learner.load_params(tensors)

        taken = take_step(
            runtime, dataclasses.replace(harness.CASE, settings=(*harness.CASE.settings, *SMALL)), prepare
        )
        found = {metric: float(taken.record[metric]) for metric in Attention.metrics}
        if factor == 0.0:  # softmax of the penalties alone, over the states held
            assert taken.learner.batch.window is not None
            length = taken.learner.batch.window.length.to_numpy()
            weights = [np.exp(-np.outer(2.0 ** (-8.0 * (np.arange(3) + 1) / 3), np.arange(n))) for n in length]
            found["expected"] = float(np.mean([(w[:, 0] / w.sum(1)).mean() for w in weights]))
        taken.learner.close()
        return found

    plain, louder = measured(), measured("attention.out_proj", 3.0)
    assert louder["attention_ratio"] == pytest.approx(3.0 * plain["attention_ratio"], rel=1e-4)
    indifferent, sharp = measured(factor=0.0), measured(factor=100.0)
    assert indifferent["attention_present"] == pytest.approx(indifferent["expected"], rel=1e-5)
    assert sharp["attention_entropy"] < 0.5 * plain["attention_entropy"] < plain["attention_entropy"] <= 1.0
