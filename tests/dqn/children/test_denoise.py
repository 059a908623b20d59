"""denoise: noised rows, and the head that says what they were before, against float64 autodiff."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.children.denoise import Denoise
from tests.dqn import oracle
from tests.dqn.feature_harness import check_reset, check_resume, extension, footprint
from tests.dqn.test_whole_step import CASES, Case, chain, fill, transitions
from tests.replay.oracle import random_words

RNG_NOISE = 6
ON = ("denoise.enabled=true", "denoise.rows=19", "denoise.sigma=0.3")


def learner_of(rt: Runtime, *settings: str, case: Case = CASES[1]) -> Learner:
    learner = Learner(rt, case.config().with_set([*settings]), case.state_dim, case.branches)
    fill(learner, chain(transitions(case)))
    learner.set(alpha_c51=case.alpha_c51)
    return learner


def trunk(params: dict[str, Any], x: Any, xp: Any = jnp) -> Any:
    for i in range(sum(name.startswith("trunk") for name in params) // 2):
        x = x @ params[f"trunk.{i}.weight"] + params[f"trunk.{i}.bias"]
        x = xp.where(x > 0.0, x, 0.0)
    return x


def loss(params: dict[str, Any], noised: Any, clean: Any) -> Any:
    out = trunk(params, noised) @ params["denoise.weight"] + params["denoise.bias"]
    return ((out - clean) ** 2).mean()


loss_and_gradient = jax.jit(jax.value_and_grad(loss))


def seen(learner: Learner) -> tuple[Any, Any, Any]:
    """Parameters before a step, then the noised states of it and the clean ones, in float64. Steps once."""
    params = {k: v.astype(np.float64) for k, v in learner.layout.unpack(learner.adam.theta.to_numpy()).items()}
    learner.step()
    feature, size = extension(learner, Denoise), learner.layout.state_dim
    noised = learner.rows.rows(learner.batch.size, learner.rows.size).state.to_numpy()[:, :size].astype(np.float64)
    clean = learner.drawn.state.to_numpy()[:, :size][feature.source.to_numpy()].astype(np.float64)
    return params, noised, clean


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[2]], ids=lambda case: case.name)
def test_noised_rows(runtime: Runtime, case: Case) -> None:
    """One of every stratum of the batch, with Philox noise by Box and Muller; the rest is the row's own."""
    learner = learner_of(runtime, *ON, case=case)
    learner.step()
    learner.drain()
    feature, batch, size = (
        extension(learner, Denoise),
        learner.rows.rows(learner.batch.size, learner.rows.size),
        case.state_dim,
    )
    source, drawn, rows = feature.source.to_numpy(), learner.drawn, 19
    seed, pairs = learner.config.train.seed, -(-size // 2)
    state = batch.state.to_numpy()
    for k in range(rows):
        w = random_words(seed, 0, RNG_NOISE, k * (pairs + 1))
        xi = ((w[0] << 32 | w[1]) >> 11) / 2.0**53
        assert source[k] == int((k + xi) / rows * drawn.size)
        noise = []
        for p in range(pairs):
            w = random_words(seed, 0, RNG_NOISE, k * (pairs + 1) + 1 + p)
            for a, b in (w[:2], w[2:]):
                radius = np.sqrt(-2.0 * np.log(((a >> 8) + 1) / 2.0**24))
                noise.append(radius * np.cos(2.0 * np.pi * (b >> 8) / 2.0**24))
        expected = drawn.state.to_numpy()[source[k], :size] + 0.3 * np.array(noise[:size])
        np.testing.assert_allclose(state[k, :size], expected, atol=2e-6)
    assert not state[:, size:].any()
    for name in ("next_state", "action", "ret", "discount", "index", "priority"):
        np.testing.assert_array_equal(getattr(batch, name).to_numpy(), getattr(drawn, name).to_numpy()[source])
    assert learner.ddqn.dlogits_all is not None and not learner.ddqn.dlogits_all.to_numpy()[drawn.size :].any()
    learner.close()


@pytest.mark.parametrize("settings", [("denoise.rows=19",), ("denoise.rows=300",), ("denoise.rows=1",)], ids=str)
def test_gradients_of_the_head_and_of_the_trunk(runtime: Runtime, settings: tuple[str, ...]) -> None:
    learner = learner_of(runtime, *ON, *settings)
    for _ in range(3):
        learner.step()
    learner.drain()
    params, noised, clean = seen(learner)
    record = learner.drain()[-1]
    value, gradient = loss_and_gradient(params, noised, clean)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    x = trunk(params, noised, np)
    out = x @ params["denoise.weight"] + params["denoise.bias"]
    size = 2.0 * (np.abs(out) + np.abs(clean)) / out.size
    for name, terms in (("denoise.weight", np.abs(x).T @ size), ("denoise.bias", size.sum(0))):
        print(oracle.check_gradient(name, found[name], np.asarray(gradient[name]), terms))
    assert record["denoise_loss"] == pytest.approx(float(value), rel=1e-5)
    assert record["denoise_noise"] == pytest.approx(((noised - clean) ** 2).mean(), rel=1e-5)
    assert record["denoise_scale"] == 1.0
    dx = jax.jit(jax.grad(lambda x: ((x @ params["denoise.weight"] + params["denoise.bias"] - clean) ** 2).mean()))(x)
    feature = extension(learner, Denoise)
    assert feature.dx is not None
    width = learner.layout.hidden[-1]
    print(oracle.check_gradient("dx", feature.dx.to_numpy()[:, :width], np.asarray(dx),
                                size @ np.abs(params["denoise.weight"]).T))  # fmt: skip
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


@pytest.mark.parametrize(
    ("budget", "rows", "weight"), [(0.0, 19, 1.0), (0.0, 19, 0.3), (0.01, 19, 0.7), (0.01, 4099, 0.7)]
)
def test_the_trunk_gets_the_gradient_within_its_share_of_the_budget(runtime: Runtime, budget: float, rows: int,
                                                                    weight: float) -> None:  # fmt: skip
    """What the whole trunk gets is the gradient of the C51 loss, as without the feature, and that of the reconstruction. With
    many rows their norms are made by a launch of their own."""
    without = learner_of(runtime, f"loss.grad_budget={budget}", "replay.n_step=1")
    without.step()
    without.drain()
    plain = without.layout.unpack(without.grad.grad.to_numpy())
    learner = learner_of(runtime, *ON, f"loss.grad_budget={budget}", "denoise.budget_share=0.25", "replay.n_step=1",
                         f"denoise.rows={rows}", f"denoise.trunk_weight={weight}")  # fmt: skip
    params, noised, clean = seen(learner)
    record = learner.drain()[-1]
    feature = extension(learner, Denoise)
    assert feature.dx is not None
    norm = weight * np.linalg.norm(feature.dx.to_numpy().astype(np.float64))
    scale = min(1.0, 0.25 * budget / norm) if budget else 1.0
    assert record["denoise_scale"] == pytest.approx(scale, rel=1e-5) and (scale < 1.0) == (budget > 0.0)
    _, gradient = loss_and_gradient(params, noised, clean)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    for name in (n for n in found if n.startswith("trunk")):
        share = scale * weight * np.asarray(gradient[name])
        np.testing.assert_allclose(found[name] - plain[name].astype(np.float64), share, rtol=2e-4,
                                   atol=2e-5 * np.abs(share).max())  # fmt: skip
        assert np.abs(share).max() > 0.0
    for name in (n for n in found if n.startswith(("value", "branch"))):
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-4, atol=1e-7)
    without.close()
    learner.close()


def test_zeroing_a_gradient_fails(runtime: Runtime) -> None:
    learner = learner_of(runtime, *ON)
    params, noised, clean = seen(learner)
    learner.drain()
    _, gradient = loss_and_gradient(params, noised, clean)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    for name in ("denoise.weight", "denoise.bias"):
        oracle.check_gradient(name, found[name], np.asarray(gradient[name]), np.abs(np.asarray(gradient[name])))
        with pytest.raises(AssertionError):
            oracle.check_gradient(name, np.zeros_like(found[name]), np.asarray(gradient[name]),
                                  np.abs(np.asarray(gradient[name])))  # fmt: skip
    learner.close()


def test_finite_differences(runtime: Runtime) -> None:
    """Of the kernels' own loss, by one weight and one bias of the head: the first step of each learner sees the same rows."""
    h, found = 0.05, {}
    for name, at in (("denoise.weight", (2, 3)), ("denoise.bias", (1,))):
        values = []
        for change in (0.0, h, -h):
            learner = learner_of(runtime, *ON)
            params = learner.params()
            params[name][at] += change
            learner.load_params(params)
            learner.step()
            values.append(float(learner.drain()[-1]["denoise_loss"]))
            if not change:
                found[name] = float(learner.layout.unpack(learner.grad.grad.to_numpy())[name][at])
            learner.close()
        assert (values[1] - values[2]) / (2 * h) == pytest.approx(found[name], rel=2e-2, abs=2e-5)


def test_without_the_trunk_the_network_does_not_notice(runtime: Runtime) -> None:
    """Bit for bit the network's gradient with no rows of noise but for the order of its sums: the same to rounding."""
    records = {}
    for settings in ((), (*ON, "denoise.shape_trunk=false")):
        learner = learner_of(runtime, *settings)
        learner.step()
        learner.drain()
        tensors = learner.layout.unpack(learner.grad.grad.to_numpy())
        records[len(settings)] = {k: v for k, v in tensors.items() if not k.startswith("denoise")}
        if settings:
            assert extension(learner, Denoise).metrics == ("denoise_loss", "denoise_noise")
        learner.close()
    for name, value in records[0].items():
        np.testing.assert_allclose(records[4][name], value, rtol=1e-4, atol=1e-7)


def test_a_head_that_is_not_finite_skips_and_stops_nobody(runtime: Runtime) -> None:
    learner = learner_of(runtime, *ON)
    spoiled = learner.params()
    spoiled["denoise.bias"][0] = np.nan
    learner.load_params(spoiled)
    for _ in range(3):
        learner.step()
    record = learner.drain()[-1]
    stats = learner.adam.stats.to_numpy()
    assert [int(s["skipped"]) for s in stats] == [0, 3]
    after = learner.params()
    assert np.isfinite(after["trunk.0.weight"]).all() and (after["trunk.0.weight"] != spoiled["trunk.0.weight"]).any()
    assert (after["denoise.weight"] == spoiled["denoise.weight"]).all() and np.isfinite(record["loss"])
    assert record["denoise_scale"] == 0.0, "nothing of it reaches the trunk"
    learner.close()


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    def measured(*settings: str, steps: int = 4) -> dict[str, float]:
        learner = learner_of(runtime, *ON, *settings, "replay.n_step=1")
        for _ in range(steps):
            learner.step()
        records = learner.drain()
        learner.close()
        return {name: float(records[name][-50:].mean()) for name in ("denoise_loss", "denoise_noise", "denoise_scale")}

    usual, loud = measured(), measured("denoise.sigma=0.6")
    assert usual["denoise_noise"] == pytest.approx(0.09, rel=0.2)
    assert loud["denoise_noise"] == pytest.approx(4.0 * usual["denoise_noise"], rel=1e-4)
    assert measured("loss.grad_budget=0.001")["denoise_scale"] < 1.0 == usual["denoise_scale"]
    fast = ("optim.lr=1e-2", "optim.lr_min=1e-2")
    assert measured(*fast, steps=300)["denoise_loss"] < 0.6 * usual["denoise_loss"], "it learns"


def test_resume_and_reset(runtime: Runtime) -> None:
    check_resume(runtime, ON)
    check_reset(runtime, ON)


def test_off_adds_nothing(runtime: Runtime) -> None:
    plain, off, on = (
        footprint(runtime, ()),
        footprint(runtime, ("denoise.enabled=false", *ON[1:])),
        footprint(runtime, ON),
    )
    assert off == plain
    assert on.children - off.children == {"forward.heads", "per_sample.denoise", "post_aux.denoise",
                                          "post_aux.denoise_sum"}  # fmt: skip
    assert ("post_aux.denoise", "adam_grad") in on.edges and ("post_aux.denoise_sum", "adam_grad") not in on.edges
    assert on.nodes == off.nodes + 7


def test_with_hindsight_rows_stand_behind_those_with_a_loss(runtime: Runtime) -> None:
    both = (
        *ON,
        "her.enabled=true",
        "her.rows=7",
        "her.achieved_column=1",
        "her.goal_column=2",
        "train.steps_per_launch=2",
    )
    learner = learner_of(runtime, *both)
    drawn = learner.drawn.size
    assert (learner.batch.size, learner.rows.size) == (drawn + 7, drawn + 26)
    for _ in range(4):
        learner.step()
    learner.drain()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()
