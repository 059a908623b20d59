"""post_aux: heads beside the value, against float64 autodiff of published losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.children import post_aux
from foxhunt_rt.dqn.layout import NetworkLayout
from tests.dqn import oracle
from tests.dqn.test_whole_step import CASES, Case, chain, fill, transitions

ON = ("selectivity.enabled=true", "risk.enabled=true", "risk.level=0.2")


def learner_of(rt: Runtime, case: Case, *settings: str) -> Learner:
    learner = Learner(rt, case.config().with_set(list(settings)), case.state_dim, case.branches)
    fill(learner, chain(transitions(case)))
    learner.set(alpha_c51=case.alpha_c51)
    return learner


def trunk(theta: dict[str, Any], layout: NetworkLayout, state: Any) -> Any:
    x = state.astype(np.float64)
    for i in range(len(layout.hidden)):
        x = np.maximum(x @ theta[f"trunk.{i}.weight"].astype(np.float64) + theta[f"trunk.{i}.bias"], 0.0)
    return x


def selectivity(weight: Any, bias: Any, x: Any, ret: Any) -> Any:
    return optax.sigmoid_binary_cross_entropy((x @ weight)[:, 0] + bias[0], jnp.where(ret > 0, 1.0, 0.0)).mean()


def risk(weight: Any, bias: Any, x: Any, ret: Any, level: float = 0.2) -> Any:
    out = x @ weight + bias
    q, shortfall = out[:, 0], out[:, 1]
    pinball = jnp.maximum(level * (ret - q), (level - 1.0) * (ret - q))
    constant = jax.lax.stop_gradient(q)
    return (pinball + (shortfall - (constant + jnp.minimum(ret - constant, 0.0) / level)) ** 2).mean()


def terms_of(name: str, out: Any, ret: Any, level: float = 0.2) -> Any:
    """Sum of the absolute terms of dloss/doutput, (B, outputs)."""
    batch = len(ret)
    if name == "selectivity":
        return np.full_like(out, 1.0 / batch)
    q, shortfall = np.abs(out[:, 0]), np.abs(out[:, 1])
    below = np.where(ret < out[:, 0], (np.abs(ret) + q) / level, 0.0)
    return np.stack([np.ones(batch), 2.0 * (shortfall + q + below)], 1) / batch


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[7]], ids=lambda case: case.name)
def test_gradients(runtime: Runtime, case: Case) -> None:
    learner = learner_of(runtime, case, *ON)
    for _ in range(3):
        learner.step()
    learner.drain()
    theta = learner.layout.unpack(learner.adam.theta.to_numpy())
    learner.step()
    record = learner.drain()[-1]
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    x = trunk(theta, learner.layout, learner.batch.state.to_numpy()[:, : case.state_dim])
    ret = learner.batch.ret.to_numpy().astype(np.float64)
    values = {}
    for name, loss in (("selectivity", selectivity), ("risk", risk)):
        weight, bias = (theta[f"{name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
        values[name], gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weight, bias, x, ret)
        size = terms_of(name, x @ weight + bias, ret)
        for part, ref in zip(("weight", "bias"), gradient, strict=True):
            terms = np.abs(x).T @ size if part == "weight" else size.sum(0)
            print(oracle.check_gradient(f"{name}.{part}", found[f"{name}.{part}"], ref, terms))
    assert record["selectivity_loss"] == pytest.approx(float(values["selectivity"]), rel=1e-4)
    assert record["risk_pinball"] + record["risk_shortfall_error"] == pytest.approx(float(values["risk"]), rel=1e-4)
    assert record["selectivity_rate"] == pytest.approx((ret > 0).mean(), abs=1e-6)
    out = x @ theta["risk.weight"].astype(np.float64) + theta["risk.bias"]
    assert record["risk_quantile"] == pytest.approx(out[:, 0].mean(), rel=1e-3, abs=1e-5)
    assert record["risk_shortfall"] == pytest.approx(out[:, 1].mean(), rel=1e-3, abs=1e-5)
    assert record["risk_below"] == pytest.approx((ret < out[:, 0]).mean(), abs=1e-6)
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


@pytest.mark.parametrize(("head", "metric", "output"), [
    ("selectivity", "selectivity_loss", 0), ("risk", "risk_pinball", 0), ("risk", "risk_shortfall_error", 1),
    ("iql_v", "iql_loss", 0),
])  # fmt: skip
def test_finite_differences(runtime: Runtime, head: str, metric: str, output: int) -> None:
    """Of the kernels' own loss, by the weights and the bias of one output: the first step of each learner sees the same rows. The
    shortfall's error takes the quantile for a constant."""

    def step(offset: float) -> tuple[float, float]:
        """The loss, and its slope along a direction by the kernels' gradient."""
        learner = learner_of(runtime, CASES[1], *ON, "iql.enabled=true", "replay.batch=200")
        params = learner.params()
        random = np.random.default_rng(5)
        direction = {f"{head}.{part}": np.zeros_like(params[f"{head}.{part}"]) for part in ("weight", "bias")}
        for array in direction.values():
            array[..., output] = random.normal(size=array[..., output].shape)
        for name, array in direction.items():
            params[name] = params[name] + np.float32(offset) * array
        learner.load_params(params)
        learner.step()
        record = learner.drain()[-1]
        gradient = learner.layout.unpack(learner.grad.grad.to_numpy())
        learner.close()
        return float(record[metric]), float(
            sum((gradient[n].astype(np.float64) * d).sum() for n, d in direction.items())
        )

    h = 1e-3 if metric == "risk_pinball" else 2e-2  # it has corners
    (up, _), (down, _), (_, slope) = step(h), step(-h), step(0.0)
    assert (up - down) / (2 * h) == pytest.approx(slope, rel=5e-3) and abs(slope) > 1e-2


def test_heads_learn_chance_quantile_and_shortfall(runtime: Runtime) -> None:
    """Returns N(mu, 1) whatever the state: P(R > 0), the quantile and the shortfall are known in closed form."""
    mu, level = 0.5, 0.2
    settings = ["network.hidden=4", "network.atoms=5", "replay.capacity=4096", "replay.batch=256", "optim.lr=3e-3",
                "optim.lr_min=3e-3", "replay.n_step=1", "replay.alpha=0", *ON]  # fmt: skip
    learner = Learner(runtime, Config().with_set(settings), 2, (2,))
    random, staging = np.random.default_rng(0), learner.replay.staging(64)
    rewards = []
    for _ in range(64):
        state = np.zeros((64, 2), np.float32)
        reward = random.normal(mu, 1.0, 64).astype(np.float32)
        rewards.append(reward)
        learner.replay.insert_batch(staging, np.zeros(64, np.int32), reward, np.ones(64, bool), np.zeros(64, bool),
                                    state=state, next_state=state)  # fmt: skip
    for _ in range(1500):
        learner.step()
    last = learner.drain()[-300:]
    sample = np.sort(np.concatenate(rewards).astype(np.float64))  # the ring's rows are the distribution
    quantile = np.quantile(sample, level)
    shortfall = sample[sample <= quantile].mean()
    assert last["selectivity_probability"].mean() == pytest.approx((sample > 0).mean(), abs=0.02)
    assert last["risk_quantile"].mean() == pytest.approx(quantile, abs=0.06)
    assert last["risk_shortfall"].mean() == pytest.approx(shortfall, abs=0.1)
    assert last["risk_below"].mean() == pytest.approx(level, abs=0.03)
    learner.close()


@pytest.mark.parametrize("bad", ["selectivity", "risk"])
def test_a_head_that_is_not_finite_skips_and_stops_nobody(runtime: Runtime, bad: str) -> None:
    """Its update is skipped and counted; the network and the other head go on."""
    learner = learner_of(runtime, CASES[1], *ON)
    spoiled = learner.params()
    spoiled[f"{bad}.bias"][0] = np.nan
    learner.load_params(spoiled)
    for _ in range(3):
        learner.step()
    record = learner.drain()[-1]
    stats = dict(zip(["network", "selectivity", "risk"], learner.adam.stats.to_numpy(), strict=True))
    assert {name: int(s["skipped"]) for name, s in stats.items()} == {"network": 0, "selectivity": 0, "risk": 0} | {
        bad: 3
    }
    after = learner.params()
    assert (
        np.isfinite(after["trunk.0.weight"]).all() and not (after["trunk.0.weight"] == spoiled["trunk.0.weight"]).all()
    )
    assert (after[f"{bad}.weight"] == spoiled[f"{bad}.weight"]).all() and np.isfinite(record["loss"])
    other = {"selectivity": "risk", "risk": "selectivity"}[bad]
    assert not (after[f"{other}.weight"] == spoiled[f"{other}.weight"]).all()
    learner.close()


def test_off_adds_nothing_and_on_leaves_the_network_alone(runtime: Runtime) -> None:
    found = []
    for settings in ((), ON):
        learner = learner_of(runtime, CASES[1], *settings)
        for _ in range(4):
            learner.step()
        learner.drain()
        names = [child.name for child in learner.graph.children]
        assert [n for n in names if n.startswith("post_aux")] == [f"post_aux.{e.name}" for e in learner.extensions]
        assert len(learner.extensions) == len(settings[:2])
        found.append(learner.adam.theta.to_numpy()[: learner.layout.network_size].tobytes())
        if settings:
            assert all(isinstance(e, (post_aux.Selectivity, post_aux.Risk)) for e in learner.extensions)
        learner.close()
    assert found[0] == found[1]
