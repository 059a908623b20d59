"""horizons: labels against NumPy on the rows as inserted, the loss against float64 autodiff, blend and shaping in closed form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn import Agent, Learner
from foxhunt_rt.dqn.children.horizons import Horizons
from foxhunt_rt.replay import ReplayError
from tests.dqn import oracle
from tests.dqn.children.test_post_aux import learner_of, trunk
from tests.dqn.feature_harness import check_reset, check_resume, extension, footprint, learner
from tests.dqn.test_whole_step import (
    CASES,
    Case,
    Taken,
    batch_of,
    chain,
    settings_of,
    take_step,
    transitions,
)

BARS = (1, 3, 7, 20)
ON = ("horizons.enabled=true", "horizons.lengths=1,3,7,20", "loss.reward_scale=0.5")
F64 = npt.NDArray[np.float64]


def expected_labels(
    rows: Any, index: Any, bars: tuple[int, ...], scale: float, held: int
) -> tuple[F64, npt.NDArray[np.bool_]]:
    """(B, H) from rows in the order of their insertion: the sum of the next h rewards of the environment, where the episode
    lasts that long and the ring has all of them."""
    label, valid = np.zeros((len(index), len(bars))), np.zeros((len(index), len(bars)), bool)
    ended = rows.terminated | rows.truncated
    for i, first in enumerate(index):
        for j, h in enumerate(bars):
            at = first + rows.environments * np.arange(h)
            if at[-1] < held and not ended[at[:-1]].any():
                label[i, j], valid[i, j] = rows.reward[at].sum() * scale / np.sqrt(h), True
    return label, valid


def parts(of: Learner) -> dict[str, F64]:
    """Columns of the head's rows, (B, H) each."""
    e = extension(of, Horizons)
    names = ("error", "valid", "label", "square", "gradient")
    table = e.rows.to_numpy().astype(np.float64).reshape(-1, len(names), len(e.config.lengths))
    return {name: table[:, i] for i, name in enumerate(names)}


@jax.jit
def loss(weight: Any, bias: Any, x: Any, label: Any, valid: Any) -> Any:
    return (jnp.where(valid, x @ weight + bias - label, 0.0) ** 2).sum(1).mean()


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[7]], ids=lambda case: case.name)
def test_labels_and_gradients(runtime: Runtime, case: Case) -> None:
    made = learner_of(runtime, case, *ON)
    for _ in range(3):
        made.step()
    made.drain()
    theta = made.layout.unpack(made.adam.theta.to_numpy())
    made.step()
    record = made.drain()[-1]
    rows = chain(transitions(case))
    label, valid = expected_labels(rows, made.batch.index.to_numpy(), BARS, 0.5, len(rows.action))
    found = parts(made)
    np.testing.assert_array_equal(found["valid"] == 1.0, valid)
    np.testing.assert_allclose(found["label"], label, rtol=2e-6, atol=2e-6)
    assert case.batch == 1 or (valid.any(0) & ~valid.all(0)).sum() >= 2, "the case has both kinds"

    x = trunk(theta, made.layout, made.batch.state.to_numpy()[:, : case.state_dim])
    weight, bias = (theta[f"horizons.{part}"].astype(np.float64) for part in ("weight", "bias"))
    value, gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weight, bias, x, label, valid)
    size = np.where(valid, 2.0 * (np.abs(x) @ np.abs(weight) + np.abs(bias) + np.abs(label)), 0.0) / case.batch
    grad = made.layout.unpack(made.grad.grad.to_numpy())
    for part, ref, terms in zip(("weight", "bias"), gradient, (np.abs(x).T @ size, size.sum(0)), strict=True):
        print(oracle.check_gradient(f"horizons.{part}", grad[f"horizons.{part}"], ref, terms))
    assert record["horizons_loss"] == pytest.approx(float(value), rel=1e-4)
    assert record["horizons_valid"] == pytest.approx(valid.mean(), abs=1e-6)
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    made.close()


def test_autodiff_is_the_finite_difference() -> None:
    """Of the oracle itself, once."""
    random = np.random.default_rng(0)
    weight, bias, x = random.normal(size=(5, 4)), random.normal(size=4), random.normal(size=(9, 5))
    label, valid = random.normal(size=(9, 4)), random.random((9, 4)) < 0.6
    gradient = np.asarray(jax.jit(jax.grad(loss))(weight, bias, x, label, valid))
    for at in np.ndindex(5, 4):
        step = np.zeros_like(weight)
        step[at] = 1e-6
        slope = (loss(weight + step, bias, x, label, valid) - loss(weight - step, bias, x, label, valid)) / 2e-6
        assert gradient[at] == pytest.approx(float(slope), rel=1e-6, abs=1e-8)


def test_windows_at_the_write_head_absent_steps_and_a_ring_that_came_round(runtime: Runtime) -> None:
    """2.5 times round a ring that E does not divide: every row held is asked for, whatever its priority."""
    e, capacity, inserts = 7, 256, 92
    config = Config().with_set(["network.hidden=5", "network.atoms=5", "replay.batch=256", f"replay.capacity={capacity}",
                                "replay.n_step=1", *ON])  # fmt: skip
    made = Learner(runtime, config, 3, (2,))
    random, staging = np.random.default_rng(3), made.replay.staging(e)
    reward = random.normal(size=(inserts, e)).astype(np.float32)
    kind = random.random((inserts, e))
    for t in range(inserts):
        state = np.zeros((e, 3), np.float32)
        made.replay.fill(staging, np.zeros(e, np.int32), reward[t], kind[t] < 0.03, kind[t] > 0.97,
                         absent=(kind[t] > 0.5) & (kind[t] < 0.52), state=state, next_state=state)  # fmt: skip
        made.replay._launch_insert(runtime.ungraphed("test"), staging)
        made.replay.note_inserted(staging)
    made.step()
    made.drain()
    ended = (kind < 0.03) | (kind > 0.97)
    absent = (kind > 0.5) & (kind < 0.52)
    index, found = made.batch.index.to_numpy(), parts(made)
    numbers = np.arange(inserts * e - capacity, inserts * e)  # held
    of_row = dict(zip((numbers % capacity).tolist(), numbers.tolist(), strict=True))
    seen = {True: 0, False: 0}
    for i, row in enumerate(index):
        t, env = divmod(of_row[int(row)], e)
        for j, h in enumerate(BARS):
            valid = t + h <= inserts and not (ended | absent)[t : t + h - 1, env].any() and not absent[t + h - 1, env]
            assert found["valid"][i, j] == valid
            assert found["label"][i, j] == pytest.approx(
                0.5 * reward[t : t + h, env].sum() / np.sqrt(h) if valid else 0.0, abs=1e-5
            )
            seen[bool(valid)] += 1
    assert min(seen.values()) > 100
    made.close()


def blend(running: F64, temperature: float = 1.0) -> tuple[F64, F64, float]:
    """Errors, weights and confidence from running means (4, H)."""
    error, n, label, square = running
    with np.errstate(all="ignore"):
        left = error / n / (square / n - (label / n) ** 2)
    e = np.where((n > 0) & np.isfinite(left) & (left > 0), left, 1.0)
    w = np.where(n > 0, np.exp(-e / temperature), 0.0)
    w = w / w.sum()
    return e, w, float(np.clip(1.0 - (w * e).sum(), 0.0, 1.0))


def test_running_errors_weights_and_confidence(runtime: Runtime) -> None:
    made = learner(
        runtime,
        (*ON, "horizons.rate=0.2", "horizons.blend_temperature=0.3", "horizons.ready_steps=2", "horizons.lr_factor=20"),
    )
    running, streak = np.zeros((4, len(BARS))), 0
    for _ in range(12):
        made.step()
        record = made.drain()[-1]
        found = parts(made)
        means = np.stack([found[name].mean(0) for name in ("error", "valid", "label", "square")])
        running += float(np.float32(0.2)) * (means - running)
        np.testing.assert_allclose(extension(made, Horizons).running.to_numpy(), running, rtol=2e-5, atol=1e-7)
        error, weight, confidence = blend(running, float(np.float32(0.3)))
        assert [record[f"horizon_{h}_error"] for h in BARS] == pytest.approx(error, rel=2e-3)
        assert [record[f"horizon_{h}_weight"] for h in BARS] == pytest.approx(weight, rel=5e-3, abs=1e-6)
        streak = min(2, streak + 1) if confidence > 0 else 0
        assert int(extension(made, Horizons).streak.to_numpy()[0]) == streak
        assert record["horizons_confidence"] == pytest.approx(confidence if streak == 2 else 0.0, abs=2e-3)
    made.close()


WEIGHTS, CONFIDENCE = (0.4, 0.1, 0.3, 0.2), 0.8


def planted(of: Learner) -> None:
    """A blend that has earned its confidence, just before the step that is compared."""
    extension(of, Horizons).blend.copy_from(np.array([*WEIGHTS, CONFIDENCE], np.float32))


@pytest.mark.parametrize("more", [(), ("popart.enabled=true", "popart.min_count=2")], ids=["", "popart"])
def test_ddqn_learns_from_the_shaped_return(runtime: Runtime, more: tuple[str, ...]) -> None:
    case = Case("shaped", 7, (13,), (3, 2), 11, 29, (*ON, *more, "horizons.bound=0.08", "loss.grad_budget=0"))
    taken = take_step(runtime, case, planted)
    made, before = taken.learner, made_before(taken)
    x, x_next = (trunk(before, made.layout, s.to_numpy()[:, : case.state_dim])
                 for s in (made.batch.state, made.batch.next_state))  # fmt: skip
    weight, bias = (before[f"horizons.{part}"].astype(np.float64) for part in ("weight", "bias"))
    unit = made.return_scale() / 0.5 if more else 1.0
    limit = 0.08 * (made.config.loss.v_max - made.config.loss.v_min) / 2

    def potential(rows: F64) -> F64:
        value = unit * ((rows @ weight + bias) * np.sqrt(BARS) @ WEIGHTS)
        return np.asarray(CONFIDENCE * np.clip(value, -limit, limit))

    discount, ret = made.batch.discount.to_numpy().astype(np.float64), made.ret.to_numpy().astype(np.float64)
    shaping = discount * potential(x_next) - potential(x)
    e = extension(made, Horizons)
    assert e.shaping is not None and (discount == 0).any() and np.abs(shaping).max() > 0.01
    np.testing.assert_allclose(e.shaping.to_numpy(), shaping, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(made.shaped_ret.to_numpy(), ret + shaping, rtol=1e-5, atol=2e-6)
    assert taken.record["horizons_shaping"] == pytest.approx(np.abs(shaping).mean(), rel=1e-4)

    batch = batch_of(taken)
    with_shaping = oracle.Batch(
        batch.state, batch.next_state, batch.action, ret + shaping, batch.discount, batch.weight
    )
    target = made.layout.unpack(taken.before["target"])
    network = {name: array for name, array in before.items() if not name.startswith("horizons")}
    target = {name: target[name] for name in network}
    expected = oracle.loss(network, target, with_shaping, made.ddqn.next_action.to_numpy(), settings_of(taken))
    found = made.layout.unpack(made.grad.grad.to_numpy())
    for name in expected.gradient:
        oracle.check_gradient(name, found[name], expected.gradient[name], expected.magnitude[name])
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    made.close()


def made_before(taken: Taken) -> dict[str, npt.NDArray[np.float32]]:
    return taken.learner.layout.unpack(taken.before["theta"])


def test_a_potential_is_bounded_and_an_untrained_head_shapes_nothing(runtime: Runtime) -> None:
    """Confidence 0: the same bits as without the feature. A huge head: no more than its bound."""
    plain = learner(runtime, ("loss.reward_scale=0.5",))
    shaped = learner(runtime, ON)
    for made in (plain, shaped):
        made.step()
        made.drain()
    n = plain.layout.network_size
    assert shaped.adam.theta.to_numpy()[:n].tobytes() == plain.adam.theta.to_numpy()[:n].tobytes()
    assert not extension(shaped, Horizons).shaping.to_numpy().any()  # type: ignore[union-attr]
    plain.close()
    tensors = shaped.params()
    tensors["horizons.weight"] *= 1e6
    shaped.load_params(tensors)
    planted(shaped)
    shaped.step()
    shaped.drain()
    limit = CONFIDENCE * shaped.config.horizons.bound * (shaped.config.loss.v_max - shaped.config.loss.v_min) / 2
    found = np.abs(extension(shaped, Horizons).shaping.to_numpy())  # type: ignore[union-attr]
    assert limit * 0.9 < found.max() <= limit * 2.0 + 1e-6
    shaped.close()


def test_a_head_that_is_not_finite_skips_and_stops_nobody(runtime: Runtime) -> None:
    made = learner(runtime, ON)
    made.step()
    made.drain()
    spoiled = made.params()
    spoiled["horizons.bias"][1] = np.nan
    made.load_params(spoiled)
    planted(made)
    e = extension(made, Horizons)
    kept = e.running.to_numpy()
    for _ in range(3):
        made.step()
    record = made.drain()[-1]
    stats = made.adam.stats.to_numpy()
    assert [int(s["skipped"]) for s in stats] == [0, 3] and np.isfinite(record["loss"])
    np.testing.assert_array_equal(e.running.to_numpy(), kept)
    made.close()


def test_off_adds_nothing_and_on_adds_what_is_documented(runtime: Runtime) -> None:
    core, on = footprint(runtime, ()), footprint(runtime, ("horizons.enabled=true", "horizons.lengths=1,5"))
    assert not any("horizon" in name for name in core.children)
    assert on.children - core.children == {"ddqn.horizons", "post_aux.horizons"} and on.nodes == core.nodes + 5
    order = [
        name for name in on.order if name in ("forward", "ddqn.horizons", "ddqn", "post_aux.horizons", "adam_grad")
    ]
    assert order == ["forward", "ddqn.horizons", "ddqn", "post_aux.horizons", "adam_grad"]
    unshaped = footprint(runtime, ("horizons.enabled=true", "horizons.lengths=1,5", "horizons.bound=0"))
    assert unshaped.children - core.children == {"post_aux.horizons"} and unshaped.nodes == core.nodes + 4


def test_resume_and_reset(runtime: Runtime) -> None:
    check_resume(runtime, (*ON, "horizons.lr_factor=10"), prepare=planted)
    check_reset(runtime, (*ON, "horizons.lr_factor=10"))


def chain_of_signals(runtime: Runtime, *more: str, scale: float = 1.0, noise: float = 0.0) -> npt.NDArray[Any]:
    """Records of a learner whose state's first entry is the next reward but for noise, and says nothing of later ones."""
    config = Config().with_set(["network.hidden=16", "network.atoms=5", "replay.capacity=4096", "replay.batch=128",
                                "optim.lr=5e-3", "optim.lr_min=5e-3", "horizons.rate=0.03", "replay.alpha=0",
                                "horizons.ready_steps=40",
                                "horizons.enabled=true", "horizons.lengths=1,4", "horizons.lr_factor=5", "replay.n_step=1",
                                *more])  # fmt: skip
    made = Learner(runtime, config, 2, (2,))
    random, staging = np.random.default_rng(0), made.replay.staging(64)
    signal = random.normal(size=(65, 64)).astype(np.float32)
    for t in range(64):
        state, following = (np.stack([s, np.ones(64, np.float32)], 1) for s in (signal[t], signal[t + 1]))
        reward = scale * (signal[t] + noise * random.normal(size=64)).astype(np.float32)
        made.replay.insert_batch(staging, np.zeros(64, np.int32), reward, np.full(64, t % 16 == 15), np.zeros(64, bool),
                                 state=state, next_state=following)  # fmt: skip
    for _ in range(300):
        made.step()
    records = made.drain()
    made.close()
    return records


def test_the_blend_follows_what_can_be_predicted(runtime: Runtime) -> None:
    """R^2 of the next reward is 1, of the next four 1/4: closed form. Each metric moves as its page says, by its cause."""
    records = chain_of_signals(runtime, "horizons.blend_temperature=0.25")
    first, last = records[0], records[-1]
    assert last["horizon_1_error"] < 0.1 and last["horizon_4_error"] == pytest.approx(0.75, abs=0.1)
    assert last["horizon_1_weight"] > 0.85 > last["horizon_4_weight"]
    assert last["horizon_1_weight"] + last["horizon_4_weight"] == pytest.approx(1.0, abs=1e-6)
    assert last["horizons_confidence"] > 0.7 and last["horizons_loss"] < 0.6 * first["horizons_loss"]
    assert not records["horizons_confidence"][:39].any() and not records["horizons_shaping"][:40].any()
    assert first["horizons_shaping"] == 0.0 < last["horizons_shaping"] < 2 * 0.05 * 10
    assert last["horizons_valid"] == pytest.approx((1.0 + 13 / 16) / 2, abs=0.03)
    noisy = chain_of_signals(runtime, "horizons.blend_temperature=0.25", noise=3.0)[-1]
    assert noisy["horizon_1_error"] > 0.7 and noisy["horizon_1_weight"] < last["horizon_1_weight"]
    assert noisy["horizons_confidence"] < 0.3 and noisy["horizons_loss"] > 5 * last["horizons_loss"]
    cool = chain_of_signals(runtime, "horizons.blend_temperature=10")[-1]
    assert cool["horizon_4_weight"] == pytest.approx(0.5, abs=0.05)


def test_sizes_that_cannot_work_are_refused(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match=r"train\.embargo = 59 .* 60; set it to at least that, or to 0"):
        Config().with_set(["horizons.enabled=true", "train.embargo=59"])
    assert Config().with_set(["horizons.enabled=true", "train.embargo=60"]).reward_horizon == 60
    assert Config().reward_horizon == Config().replay.n_step
    with pytest.raises(ConfigError, match="different horizons"):
        Config().with_set(["horizons.lengths=5,5"])
    with pytest.raises(ReplayError, match="60 steps ahead in 5 environments span 300 rows, the ring holds 256.*raise"):
        Agent(2, [2], Config().with_set(["horizons.enabled=true", "replay.batch=8", "replay.capacity=256",
                                         "network.hidden=4"]), runtime, environments=5)  # fmt: skip


def test_four_ways_give_the_same_bits(runtime: Runtime) -> None:
    made = learner(runtime, (*ON, "train.steps_per_launch=3"))
    planted(made)
    made.step()
    made.drain()
    result = made.graph.verify(steps=5)
    assert result.bitwise_equal and len(result.modes) == 4, str(result)
    planted_at = made.graph.verify(steps=2, plant="post_aux.horizons")
    assert not planted_at.bitwise_equal and planted_at.child == "post_aux.horizons"
    made.close()
