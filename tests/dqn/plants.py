"""A planted cause for every metric of `foxhunt_rt.dqn.expectations`: a training without the cause and one with it.

Where the cause moves the metric stands there, and nowhere else; tests/dqn/test_expectations.py runs the pairs and compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.expectations import DOWN, UP, expectation
from foxhunt_rt.dqn.learner import Learner

from . import oracle
from .feature_harness import CASE
from .test_whole_step import chain, fill, transitions

#: An ordinary network is within these limits of alarms, budget and clip.
BASE = ("guard.edge_mass=1", "guard.spike_share=1", "guard.q_clip=1", "guard.atom_use=0", "loss.alpha_c51_start=0.3",
        "loss.grad_budget=30", "optim.max_grad_norm=1e6", "optim.horizon=1000")  # fmt: skip
LAST = 5  # records that are averaged


@dataclass(frozen=True)
class Run:
    """A training of a small learner of odd sizes, and what is done to its rows and parameters before.

    Attributes
    ----------
    settings : tuple of str
    steps : int
    shift, spread : float
        Added to every reward, after it was multiplied.
    known : bool
        The reward is the state's first entry, and there is something to learn.
    ended : float, optional
        Share of the rows that end an episode.
    plant : callable, optional
        Given the learner before its first step.
    """

    settings: tuple[str, ...] = ()
    steps: int = 12
    shift: float = 0.0
    spread: float = 1.0
    known: bool = False
    ended: float | None = None
    plant: Callable[[Learner], None] | None = None

    def but(self, *settings: str, **fields: Any) -> Run:
        """The same with more settings and other fields."""
        return dataclasses.replace(self, settings=(*self.settings, *settings), **fields)

    def rows(self) -> oracle.Transitions:
        rows = transitions(CASE)
        reward = (rows.state[:, 0] if self.known else rows.reward) * self.spread + self.shift
        rows = dataclasses.replace(rows, reward=reward)
        if self.ended is not None:
            ended = np.random.default_rng(1).random(len(reward)) < self.ended
            rows = dataclasses.replace(rows, terminated=ended, truncated=np.zeros_like(ended))
        return chain(rows)

    def run(self, rt: Runtime) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Its records, and the optimizers' statistics after the last."""
        made = Learner(rt, CASE.config().with_set([*BASE, *self.settings]), CASE.state_dim, CASE.branches)
        fill(made, self.rows())
        if self.plant:
            self.plant(made)
        for _ in range(self.steps):
            made.step()
        records, stats = made.drain(), made.adam.stats.to_numpy()
        made.close()
        return records, stats


def on(*names: str, **fields: Any) -> Run:
    """With features switched on."""
    return Run(tuple(f"{name}.enabled=true" for name in names), **fields)


def scaled(name: str, factor: float, more: float = 0.0, rows: slice = slice(None)) -> Callable[[Learner], None]:
    """Multiplies a parameter, or its first axis from a row on, and adds to it."""

    def plant(learner: Learner) -> None:
        tensors = learner.params()
        tensors[name][rows] = tensors[name][rows] * np.float32(factor) + np.float32(more)
        learner.load_params(tensors)

    return plant


def noise_on_heads(deviation: float) -> Callable[[Learner], None]:
    """The ensemble's heads are copies of the network's own, but for noise."""

    def plant(learner: Learner) -> None:
        tensors, random = learner.params(), np.random.default_rng(0)
        for what in ("weight", "bias"):
            own = np.concatenate([tensors[f"branch.{b}.{what}"] for b in range(len(CASE.branches))], axis=-1)
            heads = [own + random.normal(size=own.shape) * deviation for _ in range(learner.config.ensemble.heads - 1)]
            tensors[f"ensemble.{what}"] = np.concatenate(heads, axis=-1).astype(np.float32)
        learner.load_params(tensors)

    return plant


def moved(name: str, without: float, planted: float) -> None:
    """Asserts that a cause moved a metric where its expectation says."""
    expected = expectation(name)
    assert expected is not None, f"{name} has no expectation"
    sign = {UP: 1.0, DOWN: -1.0}[expected.direction]
    assert sign * (float(planted) - float(without)) > 0.0, (
        f"{name} is to go {expected.direction} {expected.cause}: {without} without the cause, {planted} with it"
    )


USUAL = Run()
AT_REST = ("optim.lr=0", "optim.lr_min=0")
FAST = ("optim.lr=0.01", "optim.lr_min=0.01")
QUICK = USUAL.but("optim.lr=0.03", steps=60)
HER = on("her").but("her.achieved_column=1", "her.goal_column=3", "her.rows=7")
REACH = HER.but("her.reward=reach", "her.tolerance=0")
DENOISE = on("denoise").but("denoise.rows=9")
POPART = on("popart").but("popart.min_count=2", "popart.max_change=1")
SPECTRAL = on("spectral").but("spectral.sigma_max=1e6")
DEPTH = on("depth").but("network.residual=true", "network.hidden=16,16,16", "depth.drop=0.1")
TEMPORAL = on("temporal").but("network.window=7", "temporal.heads=3", "temporal.head_dim=5", "temporal.state_dim=6")
ATTENTION = on("attention").but("network.window=7", "attention.heads=3", "attention.head_dim=5")
CAUSAL = on("causal").but("causal.period=2", "causal.groups=3,2,2", *AT_REST)
CQL = on("cql").but("cql.alpha=10", *AT_REST, steps=100)
IQL = on("iql").but(*FAST, "iql.max_grad_norm=100", "iql.lr_factor=3", "iql.tau=0.5", steps=60)
IQN = on("iqn").but(*FAST, "iqn.quantiles=8", "iqn.cosines=16", "loss.gamma=0", steps=80)
ENSEMBLE = on("ensemble").but(*AT_REST, "ensemble.spread=0.05", steps=5, plant=noise_on_heads(0.03))
HOMEOSTAT = on("epoch", "homeostat").but("homeostat.entropy=0,1")
SELECTIVITY = on("selectivity").but(*FAST, "selectivity.lr_factor=3", steps=60)
RISK = on("risk").but(*FAST, "risk.lr_factor=3", steps=60)
HORIZONS = on("horizons").but("horizons.lengths=1,5", "horizons.rate=0.1", "horizons.ready_steps=2")
BLEND = on("horizons", known=True, steps=120).but(
    "horizons.lengths=1,5", "horizons.rate=0.1", "horizons.ready_steps=2", *FAST
)
PLAN = on("plan", steps=250).but("plan.length=1", "plan.rate=0.05", "plan.ready_steps=40", "plan.lr_factor=10",
                                 "plan.holdout=0.3", "replay.batch=64", "optim.lr=5e-3", "optim.lr_min=5e-3")  # fmt: skip
VACCINE = on("vaccine", steps=30).but("vaccine.period=2", "replay.batch=256", "loss.gamma=0", *AT_REST)
ISV = on("isv")
WIDE = ("loss.v_min=-1e3", "loss.v_max=1e3")
TIGHT = "loss.grad_budget=1e-4"

#: Of a metric, or a pattern: the training without the cause, the one with it.
PLANTS: dict[str, tuple[Run, Run]] = {
    "loss": (USUAL, USUAL.but("loss.reward_scale=3")),
    "ce": (USUAL.but("loss.gamma=0", "loss.alpha_c51_start=1", *AT_REST, steps=120),
           USUAL.but("loss.gamma=0", "loss.alpha_c51_start=1", "optim.lr=0.05", steps=120)),
    "mse": (USUAL, USUAL.but("loss.reward_scale=3")),
    "td_error": (USUAL, USUAL.but("loss.reward_scale=3")),
    "q_mean": (QUICK, QUICK.but(shift=5.0)),
    "q_min": (QUICK, QUICK.but(shift=-5.0)),
    "q_max": (QUICK, QUICK.but(shift=5.0)),
    "target_mean": (USUAL, USUAL.but(shift=5.0)),
    "weight_mean": (USUAL, USUAL.but("replay.beta_start=0", "replay.beta_end=0")),
    "atom_use": (USUAL, USUAL.but(*WIDE)),
    "edge_mass": (USUAL, USUAL.but("loss.v_min=-0.5", "loss.v_max=0.5")),
    "spike_share": (USUAL, USUAL.but("guard.spike_mass=0.05")),
    "grad_norm": (USUAL, USUAL.but("loss.reward_scale=3")),
    "clip": (USUAL, USUAL.but("optim.max_grad_norm=1e-3")),
    "ce_scale": (USUAL, USUAL.but(TIGHT)),
    "mse_scale": (USUAL, USUAL.but(TIGHT)),
    "lr": (USUAL, USUAL.but("optim.lr=0.01")),
    "tau": (USUAL, USUAL.but("optim.tau_start=0.5")),
    "beta_per": (USUAL, USUAL.but("replay.beta_start=0.9")),
    "alpha_c51": (USUAL, USUAL.but("loss.alpha_c51_start=0.9")),
    "alarm_edge_mass": (USUAL, USUAL.but("guard.edge_mass=1e-6")),
    "alarm_spike_share": (USUAL, USUAL.but("guard.spike_share=1e-6", "guard.spike_mass=0.05")),
    "alarm_q_clip": (USUAL, USUAL.but("guard.q_clip=1e-6")),
    "alarm_atom_use": (USUAL, USUAL.but("guard.atom_use=0.999")),
    "replay_size": (USUAL, USUAL.but("replay.capacity=300")),
    "optim_stats.grad_norm": (USUAL, USUAL.but("loss.reward_scale=3")),
    "optim_stats.clip": (USUAL, USUAL.but("optim.max_grad_norm=1e-3")),
    "her_offset": (HER, HER.but(ended=1.0)),
    "her_return": (REACH, REACH.but("her.tolerance=1e9")),
    "her_reached": (HER, HER.but(ended=1.0)),
    "denoise_loss": (DENOISE.but(*AT_REST, steps=200), DENOISE.but(*FAST, steps=200)),
    "denoise_noise": (DENOISE, DENOISE.but("denoise.sigma=0.6")),
    "denoise_scale": (DENOISE, DENOISE.but(TIGHT)),
    "popart_sigma": (POPART, POPART.but(spread=3.0)),
    "popart_scale": (POPART.but("popart.max_change=0.02", spread=0.001), POPART.but("popart.max_change=0.02", spread=1000.0)),
    "spectral_sigma_max": (SPECTRAL, SPECTRAL.but("optim.lr=0.1")),
    "spectral_projected": (SPECTRAL, SPECTRAL.but("spectral.sigma_max=0.01", "optim.lr=0.1")),
    "depth_kept": (DEPTH, DEPTH.but("depth.drop=0.9")),
    "temporal_ratio": (TEMPORAL, TEMPORAL.but(plant=scaled("temporal.out_proj", 3.0))),
    "temporal_memory": (TEMPORAL, TEMPORAL.but(plant=scaled("temporal.a_log", 1.0, 7.0))),
    "temporal_length": (TEMPORAL, TEMPORAL.but(ended=0.6)),
    "attention_ratio": (ATTENTION, ATTENTION.but(plant=scaled("attention.out_proj", 3.0))),
    "attention_present": (ATTENTION, ATTENTION.but(ended=1.0)),
    "attention_entropy": (ATTENTION, ATTENTION.but(plant=scaled("attention.q_proj", 100.0))),
    "causal_largest": (CAUSAL, CAUSAL.but(plant=scaled("trunk.0.weight", 10.0, rows=slice(0, 3)))),
    "causal_entropy": (CAUSAL, CAUSAL.but(plant=scaled("trunk.0.weight", 0.0, rows=slice(3, None)))),
    "cql_loss": (CQL, CQL.but(*FAST)),
    "cql_scale": (CQL, CQL.but(TIGHT)),
    "iql_loss": (IQL, IQL.but("loss.reward_scale=3")),
    "iql_value": (IQL, IQL.but("iql.tau=0.95")),
    "iql_advantage": (IQL, IQL.but("iql.tau=0.95")),
    "iqn_loss": (IQN, IQN.but("loss.reward_scale=3")),
    "iqn_scale": (IQN, IQN.but(TIGHT)),
    "iqn_spread": (IQN.but(spread=0.05), IQN),
    "ensemble_loss": (ENSEMBLE, ENSEMBLE.but(plant=noise_on_heads(1.0))),
    "ensemble_ce": (ENSEMBLE, ENSEMBLE.but(plant=noise_on_heads(1.0))),
    "ensemble_disagreement": (ENSEMBLE, ENSEMBLE.but(plant=noise_on_heads(1.0))),
    "ensemble_similarity": (ENSEMBLE, ENSEMBLE.but(plant=noise_on_heads(1.0))),
    "ensemble_scale": (ENSEMBLE, ENSEMBLE.but(TIGHT)),
    "homeostat_loss": (HOMEOSTAT, HOMEOSTAT.but("homeostat.entropy=0,0.01")),
    "homeostat_scale": (HOMEOSTAT.but("homeostat.entropy=0,0.01"), HOMEOSTAT.but("homeostat.entropy=0,0.01", TIGHT)),
    "selectivity_loss": (SELECTIVITY.but(*AT_REST, shift=5.0), SELECTIVITY.but(shift=5.0)),
    "selectivity_probability": (SELECTIVITY, SELECTIVITY.but(shift=5.0)),
    "selectivity_rate": (SELECTIVITY, SELECTIVITY.but(shift=5.0)),
    "risk_pinball": (RISK, RISK.but(spread=3.0)),
    "risk_shortfall_error": (RISK, RISK.but(spread=3.0)),
    "risk_quantile": (RISK, RISK.but(shift=5.0)),
    "risk_shortfall": (RISK, RISK.but(shift=5.0)),
    "risk_below": (RISK.but(*AT_REST, steps=200), RISK.but(steps=200)),
    "horizon_1_error": (BLEND.but(known=False), BLEND),
    "horizon_5_weight": (BLEND.but(known=False), BLEND),
    "horizons_loss": (HORIZONS, HORIZONS.but(spread=3.0)),
    "horizons_valid": (HORIZONS, HORIZONS.but("horizons.lengths=1,30")),
    "horizons_confidence": (BLEND.but(known=False), BLEND),
    "horizons_shaping": (BLEND, BLEND.but("horizons.bound=0.5")),
    "plan_loss": (PLAN.but(known=False), PLAN.but(known=True)),
    "plan_probability": (PLAN, PLAN.but(shift=5.0)),
    "plan_rate": (PLAN, PLAN.but(shift=5.0)),
    "plan_held_out": (PLAN, PLAN.but("plan.holdout=0.7")),
    "plan_skill": (PLAN, PLAN.but(known=True)),
    "plan_readiness": (PLAN, PLAN.but(known=True)),
    "prune_sparsity": (on("prune"), on("prune").but(plant=lambda learner: learner.begin_epoch(3))),
    "vaccine_cosine": (VACCINE, VACCINE.but("replay.batch=1")),
    "vaccine_target": (VACCINE, VACCINE.but("replay.batch=1")),
    "vaccine_added": (VACCINE.but("vaccine.rate=1"), VACCINE.but("vaccine.rate=1", "replay.batch=1")),
    "isv_atom_use": (ISV, ISV.but(*WIDE)),
    "isv_entropy": (ISV.but("loss.gamma=0", "loss.alpha_c51_start=1", *AT_REST, steps=120),
                    ISV.but("loss.gamma=0", "loss.alpha_c51_start=1", "optim.lr=0.05", steps=120)),
    "isv_td_error": (ISV, ISV.but(*WIDE)),
    "isv_grad_norm": (ISV, ISV.but("optim.max_grad_norm=1e-4")),
    "isv_drawdown": (ISV, ISV.but("loss.reward_scale=100")),
    "isv_phase": (ISV, ISV.but("optim.horizon=5")),
}  # fmt: skip

#: Planted by a test of their own, which calls `moved`: the metric, and the test's file below tests/.
APART = {
    **dict.fromkeys(
        ("sequence", "step", "started_ns", "ended_ns", "guard_key", "replay_skipped", "optim_stats.skipped"),
        "dqn/test_expectations.py",
    ),
    "plan_conviction": "train/test_conviction.py",
}
