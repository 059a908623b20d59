"""epoch, adaptive_gamma, homeostat: the statistics against NumPy in float64, every decision from a planted cause, the loss term
against autodiff, and that all of it is ungraphed, resumable and forgotten by a reset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import AdaptiveGammaConfig, Config, ConfigError
from foxhunt_rt.dqn import ExtensionError, Learner
from foxhunt_rt.dqn.children.adaptive_gamma import AdaptiveGamma, next_direction, next_gamma
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.children.epoch_stats import AtomStatistics, EpochStatistics
from foxhunt_rt.dqn.children.homeostat import Homeostat, entropy_launch, nudged, violation
from foxhunt_rt.testing import assert_calls

from .. import feature_harness as harness
from .. import oracle
from ..oracle import check_gradient

CASE = harness.CASE
EPOCH = ("epoch.enabled=true", "epoch.validation_rows=37", "optim.horizon=1000")
GAMMA = (*EPOCH, "adaptive_gamma.enabled=true", "loss.gamma=0.9", "adaptive_gamma.rate=0.5")
HOMEOSTAT = (*EPOCH, "homeostat.enabled=true", "loss.grad_budget=0.5", "optim.weight_decay=1e-4", "optim.lr=1e-3")
ALL = (*GAMMA, *HOMEOSTAT[len(EPOCH) :])


def statistics(learner: Learner) -> EpochStatistics:
    return harness.extension(learner, EpochStatistics)


def expected(learner: Learner, states: npt.NDArray[Any]) -> AtomStatistics:
    """The definitions, in NumPy float64, from the parameters by name."""
    loss, n = learner.config.loss, CASE.atoms
    settings = oracle.Settings(CASE.branches, n, np.float32(loss.v_min), np.float32(loss.v_max), 0, 0, 0)
    params = {name: value.astype(np.float64) for name, value in learner.params().items()}
    q, q_var, ret_var, entropy, atoms = [], [], [], [], np.zeros(n)
    for logits in oracle.forward(params, states[:, : CASE.state_dim].astype(np.float64), settings, np):
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        mean = (p * settings.z).sum(-1)
        q += list(mean.mean(0))
        q_var += list(((mean - mean.mean(0)) ** 2).mean(0))
        ret_var += list((p * (settings.z - mean[..., None]) ** 2).sum(-1).mean(0))
        entropy.append((-(p * np.log(p)).sum(-1) / np.log(n)).mean())
        atoms += p.mean((0, 1)) / len(CASE.branches)
    return AtomStatistics(len(states), np.exp(-(atoms * np.log(atoms)).sum()) / n, np.mean(entropy), atoms[0] + atoms[-1],
                          np.array(q), np.array(q_var), np.array(ret_var))  # fmt: skip


def same(found: AtomStatistics | None, reference: AtomStatistics) -> None:
    assert found is not None and found.rows == reference.rows
    for name in ("atom_use", "entropy", "edge_mass", "q_mean", "q_variance", "return_variance"):
        np.testing.assert_allclose(getattr(found, name), getattr(reference, name), rtol=2e-5, atol=1e-6, err_msg=name)


def concentrate(learner: Learner, atoms: dict[int, float]) -> None:
    """Puts the mass of every distribution on given atoms, whatever the state, from the next step on."""
    tensors = {name: np.zeros_like(value) for name, value in learner.params().items()}
    for atom, logit in atoms.items():
        tensors["value.bias"][atom] = logit
    learner.load_params(tensors)


# ---------------------------------------------------------------------- statistics


def test_statistics_against_float64(runtime: Runtime) -> None:
    learner, random = harness.learner(runtime, EPOCH), np.random.default_rng(3)
    validation = random.normal(size=(23, CASE.state_dim)).astype(np.float32)
    statistics(learner).set_validation(validation)
    for epoch in range(2):
        for _ in range(4):
            learner.step()
        learner.end_epoch(epoch)
        same(statistics(learner).batch, expected(learner, learner.batch.state.to_numpy()))
        same(statistics(learner).validation, expected(learner, validation))
    told = statistics(learner).report()
    assert told["batch"]["rows"] == CASE.batch and len(told["validation"]["q_mean"]) == sum(CASE.branches)
    learner.close()


@pytest.mark.parametrize(
    ("atoms", "use", "edge"), [({0: 500.0}, 1, 1.0), ({3: 500.0}, 1, 0.0), ({0: 500.0, 7: 500.0}, 2, 0.5)]
)
def test_planted_distributions_read_as_they_are(
    runtime: Runtime, atoms: dict[int, float], use: int, edge: float
) -> None:
    learner = harness.learner(runtime, EPOCH)
    concentrate(learner, atoms)
    found = statistics(learner).measure(learner.batch.state, CASE.batch)
    z = np.linspace(learner.config.loss.v_min, learner.config.loss.v_max, CASE.atoms)[list(atoms)]
    assert found.atom_use == pytest.approx(use / CASE.atoms) and found.edge_mass == pytest.approx(edge)
    assert found.entropy == pytest.approx(np.log(use) / np.log(CASE.atoms), abs=1e-6)
    np.testing.assert_allclose(found.q_mean, z.mean(), atol=1e-5)
    np.testing.assert_allclose(found.q_variance, 0.0, atol=1e-9)
    np.testing.assert_allclose(found.return_variance, z.var(), rtol=1e-5, atol=1e-5)
    learner.close()


def test_statistics_keep_nan(runtime: Runtime) -> None:
    learner = harness.learner(runtime, EPOCH)
    concentrate(learner, {2: np.nan})
    found = statistics(learner).measure(learner.batch.state, CASE.batch)
    assert np.isnan([found.entropy, found.q_mean[0], found.return_variance[-1]]).all()
    learner.close()


def test_impossible_validation_rows_are_refused(runtime: Runtime) -> None:
    learner = harness.learner(runtime, EPOCH)
    for shape in ((0, CASE.state_dim), (38, CASE.state_dim), (3, CASE.state_dim + 1), (CASE.state_dim,)):
        with pytest.raises(ExtensionError, match="1 to 37 rows"):
            statistics(learner).set_validation(np.zeros(shape, np.float32))
    learner.close()


# ---------------------------------------------------------------------- the discount


def test_the_direction_has_hysteresis() -> None:
    config, limit = AdaptiveGammaConfig(use_low=0.2, use_high=0.8), 0.25

    def course(uses: list[float], edge: float = 0.0, direction: int = 0) -> list[int]:
        out = []
        for use in uses:
            direction = next_direction(direction, use, edge, config, limit)
            out.append(direction)
        return out

    assert course([0.5, 0.21, 0.19, 0.21, 0.49, 0.5, 0.3]) == [0, 0, 1, 1, 1, 0, 0]
    assert course([0.79, 0.81, 0.79, 0.51, 0.5, 0.7]) == [0, -1, -1, -1, 0, 0]
    assert course([0.1, 0.9]) == [1, -1], "from one bound to beyond the other"
    assert course([0.1], edge=0.3) == [-1], (
        "what the support cannot hold shortens the horizon, however few atoms it uses"
    )
    assert course([0.1], edge=0.2) == [0] and course([0.1], edge=0.1) == [1]


def test_the_horizon_moves_by_its_rate_within_bounds() -> None:
    config = AdaptiveGammaConfig(low=0.8, high=0.99, rate=0.5)
    assert next_gamma(0.9, 0, config) == pytest.approx(0.9)
    assert 1 / (1 - next_gamma(0.9, 1, config)) == pytest.approx(15)
    assert 1 / (1 - next_gamma(0.9, -1, config)) == pytest.approx(10 / 1.5)
    assert next_gamma(0.985, 1, config) == 0.99 and next_gamma(0.81, -1, config) == 0.8


def test_gamma_follows_atom_use_in_stream_order_and_forms_the_returns(runtime: Runtime) -> None:
    learner = harness.learner(runtime, (*GAMMA, "replay.n_step=3", "optim.lr_min=0", "optim.lr=0"))

    def discounts() -> set[float]:
        return set(np.unique(learner.batch.discount.to_numpy()).tolist())

    def powers(gamma: float) -> set[float]:
        g = np.float32(gamma)
        return {0.0, *(float(x) for x in np.cumprod(np.full(3, g, np.float32)))}

    gammas = [0.9]
    for epoch, atoms in enumerate(({4: 500.0}, {4: 500.0}, {}, {})):
        concentrate(learner, atoms)
        for _ in range(3):
            learner.step()
        learner.drain()
        assert discounts() <= powers(gammas[-1]) and len(discounts()) > 1
        learner.end_epoch(epoch)
        told = harness.extension(learner, AdaptiveGamma).report()
        assert told["gamma"] == learner.config.loss.gamma == learner.control.config.loss.gamma
        gammas.append(told["gamma"])
    assert 1 / (1 - np.array(gammas)) == pytest.approx([10, 15, 22.5, 15, 10])
    learner.close()


def test_what_it_needs_is_refused_when_missing(runtime: Runtime) -> None:
    for settings, says in ((["adaptive_gamma.enabled=true"], "set epoch.enabled"),
                           (["homeostat.enabled=true"], "set epoch.enabled"),
                           (["epoch.enabled=true", "adaptive_gamma.enabled=true", "loss.gamma=0.999"], "outside"),
                           (["homeostat.entropy=0.9,0.1"], "no range"), (["homeostat.entropy=0.9"], "no range"),
                           (["homeostat.loss_weight=2"], "above"), (["adaptive_gamma.low=0.995"], "low bounds")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            Config().with_set(settings)
    learner = harness.learner(runtime, HOMEOSTAT)
    learner.step()
    with pytest.raises(ExtensionError, match="begin_epoch"):
        learner.end_epoch(0)
    learner.close()


# ---------------------------------------------------------------------- the regulator


def test_violation_and_nudge() -> None:
    assert [violation(x, (0.2, 0.8)) for x in (0.2, 0.5, 0.8)] == [0.0] * 3
    assert violation(0.15, (0.2, 0.8)) == pytest.approx(0.25) and violation(0.0, (0.2, 0.8)) == 1.0
    assert violation(1.0, (0.2, 0.8)) == pytest.approx(-0.25) and violation(99.0, (0.2, 0.8)) == -1.0
    assert nudged(0.5, 0.25, 0.1, 0.0, 2.0, 0.5) == 1.0 and nudged(0.5, -0.5, 0.1, 0.0, 2.0, 0.5) == 0.0
    assert nudged(0.5, 0.0, 0.1, 0.0, 2.0, 0.5) == pytest.approx(0.3), "without a violation it goes back"


def regulate(
    runtime: Runtime, *settings: str, plant: Callable[[Learner], None] = lambda learner: None
) -> tuple[Any, Learner]:
    """What a learner tells after one epoch with something planted."""
    learner = harness.learner(runtime, (*HOMEOSTAT, *settings))
    learner.begin_epoch(0)
    for _ in range(2):
        learner.step()
    learner.drain()
    plant(learner)
    learner.end_epoch(0)
    return harness.extension(learner, Homeostat).report(), learner


def narrow(learner: Learner) -> None:
    concentrate(learner, {4: 3.0})


WIDE = ("homeostat.atom_use=0,1", "homeostat.entropy=0,1", "homeostat.grad_norm=0,1e9", "homeostat.weight_norm=0,1e9")


def test_in_range_nothing_moves(runtime: Runtime) -> None:
    told, learner = regulate(runtime, *WIDE)
    assert set(told.pop("violations").values()) == {0.0}
    assert told == {"label_smoothing": CASE_SMOOTHING, "grad_budget": 0.5, "weight_decay": 1e-4,
                    "loss_weight": pytest.approx(0.01)}  # fmt: skip
    learner.close()


CASE_SMOOTHING = 0.1  # of the harness's case


@pytest.mark.parametrize(
    ("option", "weight", "direction"),
    [
        ("atom_use=0.9999,1", "label_smoothing", 1),  # too few atoms in use: more smoothing
        ("entropy=0.9999,1", "loss_weight", 1),
        ("entropy=0,0.01", "loss_weight", 1),
        ("grad_norm=1e6,1e7", "grad_budget", 1),  # a gradient too short: a larger budget
        ("grad_norm=1e-9,1e-8", "grad_budget", -1),
        ("weight_norm=0.01,0.02", "weight_decay", 1),  # parameters too large: more decay
    ],
)
def test_each_violation_moves_its_weight(runtime: Runtime, option: str, weight: str, direction: int) -> None:
    settings = [w for w in WIDE if not w.startswith(f"homeostat.{option.split('=')[0]}=")]
    told, learner = regulate(runtime, *settings, f"homeostat.{option}", "homeostat.smoothing_max=0.2",
                             "homeostat.rate=0.5", plant=narrow if "=0.9999" in option else lambda learner: None)  # fmt: skip
    before = {
        "label_smoothing": CASE_SMOOTHING,
        "grad_budget": 0.5,
        "weight_decay": 1e-4,
        "loss_weight": np.float32(0.01),
    }
    moved = {name: told[name] - value for name, value in before.items() if told[name] != pytest.approx(value, rel=1e-9)}
    assert list(moved) == [weight] and np.sign(moved[weight]) == direction, told
    first = told[weight]
    learner.step()  # the next step goes by it
    learner.drain()
    if weight in ("label_smoothing", "grad_budget", "weight_decay"):
        assert learner.step_block.to_numpy()[weight][0] == np.float32(first)
    for epoch in range(1, 40):
        learner.end_epoch(epoch)
    bound = {"label_smoothing": 0.2, "grad_budget": 0.5 * 4.0**direction, "weight_decay": 0.01, "loss_weight": 0.1}
    assert harness.extension(learner, Homeostat).report()[weight] == pytest.approx(bound[weight], rel=1e-5)
    learner.close()


def test_without_the_loss_term_the_entropy_moves_the_smoothing(runtime: Runtime) -> None:
    settings = [w for w in WIDE if not w.startswith("homeostat.entropy")]
    told, learner = regulate(runtime, *settings, "homeostat.entropy=0.9999,1", "homeostat.loss_weight=0",
                             "homeostat.smoothing_max=0.2", plant=narrow)  # fmt: skip
    assert told["label_smoothing"] > CASE_SMOOTHING and told["loss_weight"] == 0.0
    learner.close()


# ---------------------------------------------------------------------- the loss term


class Term:
    """The kernel on logits of one's own."""

    def __init__(self, runtime: Runtime, shape: LossShape, weight: float, bounds: tuple[float, float]) -> None:
        self.runtime, self.shape, self.weight, self.bounds = runtime, shape, weight, bounds

    def __call__(self, raw: npt.NDArray[np.float32], action: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        shape, rt = self.shape, self.runtime
        padded = np.zeros((len(raw), shape.head_padded), np.float32)
        padded[:, : raw.shape[1]] = raw
        mixed = np.ravel_multi_index(tuple(action.T), shape.branches).astype(np.int32)
        part, rows = rt.array(np.full_like(padded, np.nan), "part"), rt.zeros((len(raw), 2), np.float32, "rows")
        k, n = len(shape.branches), shape.atoms
        launch = entropy_launch(shape)
        rt.ungraphed("test.entropy").launch(launch.kernel, (len(raw),), (launch.threads,), dict(
            logits=rt.array(padded, "logits"), action=rt.array(mixed, "action"),
            weight=rt.array(np.array([self.weight], np.float32), "weight"), part=part, rows=rows,
            branch_sizes=shape.packed_branches, low=self.bounds[0], high=self.bounds[1],
            branch_scale=1.0 / k if shape.reduction == "mean" else 1.0, B=len(raw), K=k, S=shape.actions, N=n,
            Np=shape.head_padded), shared=launch.shared)  # fmt: skip
        found = part.to_numpy()
        assert not found[:, raw.shape[1] :].any(), "pads are zero"
        return found[:, : raw.shape[1]], rows.to_numpy()


def hinge(raw: Any, action: Any, shape: LossShape, weight: float, bounds: tuple[float, float]) -> Any:
    """Per row: weight times the branches' squared distances of the entropy over log N from its range."""
    n, at, total = shape.atoms, shape.atoms, 0.0
    for b, choices in enumerate(shape.branches):
        advantage = raw[:, at : at + choices * n].reshape(-1, choices, n)
        at += choices * n
        logits = (raw[:, None, :n] + advantage - advantage.mean(1, keepdims=True))[jnp.arange(len(raw)), action[:, b]]
        log_p = jax.nn.log_softmax(logits, axis=-1)
        h = -(jnp.exp(log_p) * log_p).sum(-1) / np.log(n)
        total = total + jnp.maximum(bounds[0] - h, 0.0) ** 2 + jnp.maximum(h - bounds[1], 0.0) ** 2
    return weight * total / (len(shape.branches) if shape.reduction == "mean" else 1)


@partial(jax.jit, static_argnames="shape")  # one compilation a shape
def hinge_gradient(raw: Any, action: Any, bounds: Any, shape: LossShape) -> tuple[Any, Any]:
    """Of the rows' mean, and what each row has, with a weight of 0.7."""

    def loss(x: Any) -> tuple[Any, Any]:
        each = hinge(x, action, shape, 0.7, bounds)
        return each.mean(), each

    return jax.grad(loss, has_aux=True)(raw)  # type: ignore[no-any-return]


SHAPES = [
    LossShape(29, (5, 3, 3, 3), 51),
    LossShape(1, (2,), 2),
    LossShape(7, (1, 4), 33, "sum"),
    LossShape(3, (9,), 256),
]


def inputs(shape: LossShape, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    raw = 2.0 * random.normal(size=(shape.batch, (1 + shape.actions) * shape.atoms)).astype(np.float32)
    return raw, np.stack([random.integers(0, n, shape.batch) for n in shape.branches], 1)


@pytest.mark.parametrize("bounds", [(0.95, 0.99), (0.05, 0.1)], ids=["below", "above"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_entropy_gradient_and_loss(runtime: Runtime, shape: LossShape, bounds: tuple[float, float]) -> None:
    raw, action = inputs(shape, 1)
    f32 = tuple(float(np.float32(x)) for x in bounds)
    reference, each = map(np.asarray, hinge_gradient(raw.astype(np.float64), action, f32, shape))
    found, rows = Term(runtime, shape, 0.7, bounds)(raw, action)
    np.testing.assert_allclose(rows[:, 0], each, rtol=2e-5, atol=1e-7)
    assert np.abs(reference).max() > 1e-4
    # terms of an element: 2 |h - bound| p (|log p| + H) / log N, over the branch's actions and the rows
    size = 0.7 / shape.batch * 2.0 * 2.0 / np.sqrt(shape.atoms)
    print(check_gradient("entropy", found, reference, np.full_like(reference, size)))
    with pytest.raises(AssertionError):
        check_gradient("entropy", np.zeros_like(found), reference, np.full_like(reference, size))


def test_entropy_finite_differences(runtime: Runtime) -> None:
    """The gradient is that of the loss the kernel itself reports."""
    shape = SHAPES[0]
    raw, action = inputs(shape, 2)
    kernel = Term(runtime, shape, 1.0, (0.95, 0.99))
    gradient, _ = kernel(raw, action)
    direction = np.random.default_rng(3).normal(size=raw.shape).astype(np.float32)
    h = 1e-2
    up, down = (
        kernel(raw + np.float32(sign * h) * direction, action)[1][:, 0].astype(np.float64).mean() for sign in (1, -1)
    )
    assert (up - down) / (2 * h) == pytest.approx(float((gradient.astype(np.float64) * direction).sum()), rel=2e-3)


def test_the_term_is_bounded_and_silent_within_the_range(runtime: Runtime) -> None:
    shape = SHAPES[0]
    raw, action = inputs(shape, 5)
    gradient, rows = Term(runtime, shape, 0.3, (0.0, 1.0))(raw, action)
    assert not rows.any() and not gradient.any()
    for scale in (0.0, 1.0, 100.0):  # from uniform to one atom
        _, rows = Term(runtime, shape, 0.3, (0.9, 0.95))(scale * raw, action)
        assert np.isfinite(rows).all() and 0 < rows[:, 0].max() <= 0.3


def test_it_joins_dlogits_within_its_share_of_the_budget(runtime: Runtime) -> None:
    found = []
    term = ("epoch.enabled=true", "homeostat.enabled=true", "homeostat.entropy=0.9999,1", "homeostat.loss_weight_max=50",
            "homeostat.loss_weight=50", "homeostat.budget_share=0.25")  # fmt: skip
    for settings in ((), term):
        learner = harness.learner(runtime, ("loss.grad_budget=0.02", *settings))
        learner.step()
        record = learner.drain()[0]
        assert learner.ddqn.dlogits is not None
        found.append((learner, record, learner.ddqn.dlogits.to_numpy().astype(np.float64)))
    (without, _, core), (learner, record, both) = found
    mine = harness.extension(learner, Homeostat)
    part, rows = mine.part.to_numpy().astype(np.float64), mine.rows.to_numpy().astype(np.float64)
    scale = 0.25 * 0.02 / np.sqrt(rows[:, 1].sum())
    assert scale < 1.0 and record["homeostat_scale"] == pytest.approx(scale, rel=1e-5)
    assert record["homeostat_loss"] == pytest.approx(rows[:, 0].mean(), rel=1e-5) and record["homeostat_loss"] > 0
    np.testing.assert_allclose(both, core + scale * part, rtol=1e-6, atol=1e-9)
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    without.close()
    learner.close()


def test_the_term_brings_the_entropy_into_its_range(runtime: Runtime) -> None:
    """A network that is sure of one atom, without any other loss to speak of."""
    ends = []
    for on in (False, True):
        term = ("homeostat.enabled=true", "homeostat.entropy=0.5,0.9", "homeostat.loss_weight_max=1",
                "homeostat.loss_weight=1")  # fmt: skip
        learner = harness.learner(runtime, (*EPOCH, *(term if on else ()), "loss.grad_budget=0", "optim.lr=0.02", "loss.gamma=0",
                                            "loss.reward_scale=1e-9", "loss.label_smoothing=0"))  # fmt: skip
        concentrate(learner, {5: 6.0})
        learner.set(alpha_c51=0.0)
        for _ in range(120):
            learner.step()
        records = learner.drain()
        ends.append(statistics(learner).measure(learner.batch.state, CASE.batch).entropy)
        if on:
            assert (
                records["homeostat_loss"][0] > 0.05
                and records["homeostat_loss"][-1] < 0.01 * records["homeostat_loss"][0]
            )
        learner.close()
    assert ends[0] < 0.4 < 0.49 < ends[1] < 0.9


# ---------------------------------------------------------------------- the step does not notice


def test_known_failure_k4(runtime: Runtime) -> None:
    """Work between epochs has modules of its own, none of which the step captured, and the step after it is still one launch."""
    with Runtime(runtime.device.ordinal) as own:
        learner = harness.learner(own, ALL)
        learner.begin_epoch(0)
        learner.step()
        learner.end_epoch(0)
        assert not own.ledger.breaches
        its = [e for e in own.ledger.entries() if "epoch" in e.ungraphed.values()]
        assert its and not any(e.captured for e in its)
        learner.step()
        learner.drain()
        with assert_calls({"cuGraphLaunch": 10}, runtime=own):
            for _ in range(10):
                learner.step()
        learner.close()


def test_statistics_wait_for_the_step(runtime: Runtime) -> None:
    """Known failure K7: what is read is what the last step left, however many were in flight."""
    learner = harness.learner(runtime, (*EPOCH, "guard.launches_ahead=8", "optim.lr=0.05"))
    for _ in range(6):
        learner.step()
    learner.end_epoch(0)
    same(statistics(learner).batch, expected(learner, learner.batch.state.to_numpy()))
    learner.close()


def one_epoch(learner: Learner) -> None:
    learner.begin_epoch(0)
    for _ in range(3):
        learner.step()
    learner.end_epoch(0)
    learner.take()


MOVES = ("guard.edge_mass=1", "adaptive_gamma.use_high=1", "adaptive_gamma.use_low=0.9999999", "homeostat.entropy=0.9999,1",
         "homeostat.grad_norm=1e6,1e7")  # fmt: skip


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, (*ALL, *MOVES), prepare=one_epoch)
    harness.check_reset(runtime, (*ALL, *MOVES), prepare=one_epoch)


def test_a_decision_after_resuming_is_that_of_a_run_without_a_break(runtime: Runtime) -> None:
    from foxhunt_rt.dqn.learner_state import read_state, write_state

    one, told = harness.learner(runtime, (*ALL, *MOVES)), []
    one_epoch(one)
    for _ in range(2):
        one.step()
    tensors, facts = read_state(one)
    two = harness.learner(runtime, (*ALL, *MOVES), rows=False)
    write_state(two, tensors, facts)
    for learner in (one, two):
        learner.step()
        learner.end_epoch(1)
        learner.step()
        learner.drain()
        told.append(({e.name: dict(e.report()) for e in learner.extensions}, learner.config, harness.contents(learner)))
        learner.close()
    assert told[0] == told[1]
    assert told[0][1].loss.gamma > 0.93 and told[0][1].loss.grad_budget > 0.5, "both have moved twice"


def test_off_they_add_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    core = harness.footprint(runtime, ("loss.grad_budget=0.5",))
    off = [s for s in ALL if not s.endswith("enabled=true")]
    assert core == harness.footprint(runtime, (*off, "loss.gamma=0.99"))
    between = harness.footprint(runtime, (*GAMMA, "loss.grad_budget=0.5"))
    assert (between.nodes, between.order, between.bytes) == (core.nodes, core.order, core.bytes)
    on = harness.footprint(runtime, HOMEOSTAT)
    assert on.nodes == core.nodes + 2 and on.children - core.children == {"aux.entropy", "aux.homeostat"}
    order = list(on.order)
    assert order.index("ddqn") < order.index("aux.entropy") < order.index("aux.homeostat") < order.index("adam_grad")
    silent = harness.footprint(runtime, (*HOMEOSTAT, "homeostat.loss_weight=0"))
    assert (silent.nodes, silent.order) == (core.nodes, core.order)
