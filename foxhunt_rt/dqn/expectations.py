"""What every number that is logged should do, in one table: a metric that never moves is one that nobody checks (known failure
K6). docs/metrics.md shows it; tests/dqn/test_expectations.py plants a cause for each of the step's own, and refuses a metric
without an entry.

moves      differs from step to step, or epoch to epoch, of any training
constant   stays as the settings have it, until they change it
zero       0 unless something is wrong
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

MOVES, CONSTANT, ZERO = "moves", "constant", "zero"


@dataclass(frozen=True)
class Expectation:
    """What a metric does in an ordinary training, and a cause that moves it in a stated direction."""

    kind: str
    cause: str


def _moves(cause: str) -> Expectation:
    return Expectation(MOVES, cause)


def _constant(cause: str) -> Expectation:
    return Expectation(CONSTANT, cause)


def _zero(cause: str) -> Expectation:
    return Expectation(ZERO, cause)


#: Fields of `step_record`, `alarm_*` being those of `alarm_block`.
RECORD: Mapping[str, Expectation] = {
    "sequence": _moves("up by one a step"),
    "step": _moves("up by one a step"),
    "started_ns": _moves("up with the device's clock"),
    "ended_ns": _moves("up with the device's clock, above started_ns"),
    "guard_key": _constant("all ones; a fault claims it: a NaN parameter lowers it"),
    "loss": _moves("up with the scale of rewards"),
    "ce": _moves("down as known returns are learned"),
    "mse": _moves("up with the scale of rewards"),
    "td_error": _moves("up with the scale of rewards"),
    "q_mean": _moves("up with rewards that are higher throughout"),
    "q_min": _moves("down with rewards that are lower throughout"),
    "q_max": _moves("up with rewards that are higher throughout"),
    "target_mean": _moves("up with rewards that are higher throughout"),
    "weight_mean": _moves("up to 1 when beta_per is 0"),
    "atom_use": _moves("down with a support far too wide"),
    "edge_mass": _moves("up with a support too narrow"),
    "spike_share": _zero("while targets are spread; up when less mass on one atom counts as a spike"),
    "grad_norm": _moves("up with the scale of rewards"),
    "clip": _constant("1 while the gradient is within the clip; down with a tight one"),
    "ce_scale": _constant("1 while its gradient is within the budget; down with a tight one"),
    "mse_scale": _constant("1 while its gradient is within the budget; down with a tight one"),
    "lr": _moves("up with optim.lr"),
    "tau": _moves("up with optim.tau_start"),
    "beta_per": _moves("up with replay.beta_start"),
    "alpha_c51": _constant("through an epoch; up with loss.alpha_c51_start"),
    "alarm_edge_mass": _zero("up where no edge mass is allowed"),
    "alarm_spike_share": _zero("up where no spike is allowed"),
    "alarm_q_clip": _zero("up where no Q is allowed"),
    "alarm_atom_use": _zero("up where all atoms are asked for"),
    "replay_size": _constant("between inserts; down with a smaller ring"),
    "replay_skipped": _zero("up with a TD error that is not finite"),
}

#: Fields of `optim_stats`, of the network and of each group with an optimizer of its own.
OPTIM: Mapping[str, Expectation] = {
    "grad_norm": _moves("up with the scale of rewards"),
    "clip": _constant("1 while the gradient is within the clip; down with a tight one"),
    "skipped": _zero("up by one a step whose gradient is not finite"),
}

#: Fields of the event at the end of an epoch; those of the records are their means or extremes over the epoch.
EVENT: Mapping[str, Expectation] = {
    "epoch": _moves("up by one an epoch"),
    "steps": _constant("up with train.steps_per_epoch"),
    "step_us_median": _moves("up with larger layers"),
    "best": _moves("true where validation ranks above all before; true in the first epoch"),
    "bars_seen": _constant("up with the training window"),
    "alpha_c51": _moves("up by loss.alpha_c51_step an epoch, to alpha_c51_end"),
    "epsilon": _moves("down to train.epsilon_end"),
    **{name: RECORD[name] for name in ("loss", "ce", "mse", "td_error", "atom_use", "grad_norm", "q_min", "q_max")},
    "validation": _moves("with the policy: docs/market.md"),
    "features": _moves("what features report: docs/step"),
    "collection": _moves("what collection adds: docs/counterfactual.md"),
}

#: Metrics of the features of the step: docs/step/ has a page for each, its test the planted cause.
FEATURES: Mapping[str, Expectation] = {
    "her_offset": _moves("up with longer episodes; 0 where each has one transition"),
    "her_return": _moves("up with her.tolerance, where the reward is for reaching"),
    "her_reached": _moves("up with shorter episodes"),
    "denoise_loss": _moves("down as the head learns"),
    "denoise_noise": _moves("up with the square of denoise.sigma"),
    "denoise_scale": _constant("1 while its gradient is within its share; down with a tight one"),
    "popart_sigma": _moves("up with the spread of rewards"),
    "popart_scale": _moves("within max_change of 1; 1 when sigma rests"),
    "spectral_sigma_max": _moves("up with a learning rate out of measure"),
    "spectral_projected": _zero("up with a bound that every matrix meets"),
    "depth_kept": _moves("down with depth.drop"),
    "temporal_ratio": _moves("up with a larger W_out; 0: the block is dead"),
    "temporal_memory": _moves("down with faster decay"),
    "temporal_length": _constant("for one ring and policy, but for the draw; down with shorter episodes"),
    "attention_ratio": _moves("up with a larger W_out; 0: the block is dead"),
    "attention_present": _moves("up to 1 at an episode's first state"),
    "attention_entropy": _moves("down with sharper scores"),
    "causal_largest": _moves("up with a feature that Q depends on"),
    "causal_entropy": _moves("down when one group matters alone"),
    "cql_loss": _moves("up with the weight of the loss"),
    "cql_scale": _constant("1 while its gradient is within its share; down with a tight one"),
    "iql_loss": _moves("up with the scale of rewards"),
    "iql_value": _moves("up with tau_iql"),
    "iql_advantage": _moves("down with tau_iql"),
    "iqn_loss": _moves("up with the scale of rewards"),
    "iqn_scale": _constant("1 while its gradient is within its share; down with a tight one"),
    "iqn_spread": _moves("up with returns that are spread"),
    "ensemble_loss": _moves("up with noise on the heads' parameters"),
    "ensemble_ce": _moves(
        "up with noise on the heads' parameters; that of the network's own head where they are copies of it"
    ),
    "ensemble_disagreement": _moves("up with noise on the heads' parameters and with ensemble.diversity"),
    "ensemble_similarity": _moves("down with noise on the heads' parameters and with ensemble.diversity"),
    "ensemble_scale": _constant("1 while its gradient is within its share; down with a tight one"),
    "homeostat_loss": _moves("up outside its ranges"),
    "homeostat_scale": _constant("1 while its gradient is within its share; down with a tight one"),
    "selectivity_loss": _moves("down as the sign of returns is learned"),
    "selectivity_probability": _moves("up with the share of positive returns"),
    "selectivity_rate": _moves("up with the share of positive returns"),
    "risk_pinball": _moves("up with the spread of returns"),
    "risk_shortfall_error": _moves("up with the spread of returns"),
    "risk_quantile": _moves("up with rewards that are higher throughout"),
    "risk_shortfall": _moves("up with rewards that are higher throughout"),
    "risk_below": _moves("towards risk.level as the quantile is learned"),
    "horizon_*_error": _moves("up with the spread of rewards"),
    "horizon_*_weight": _moves("down where the error is larger"),
    "horizons_loss": _moves("up with the spread of rewards"),
    "horizons_valid": _moves("up as rows get further from the write head"),
    "horizons_confidence": _moves("up as the errors fall"),
    "horizons_shaping": _moves("up with its bound"),
    "plan_loss": _moves("down as the label is learned"),
    "plan_probability": _moves("up with the share of rows worth it"),
    "plan_rate": _moves("up with the share of rows worth it"),
    "plan_held_out": _moves("with the rows that were held out"),
    "plan_skill": _moves("up where held-out rows are predicted"),
    "plan_readiness": _zero("up once the skill was positive for long enough"),
    "plan_conviction": _constant("1 until readiness is earned"),
    "prune_sparsity": _constant("through an epoch; up by the schedule"),
    "vaccine_cosine": _moves("down with gradients that disagree"),
    "vaccine_target": _moves("towards the cosine"),
    "vaccine_added": _moves("up where the cosine is under its target"),
    "isv_atom_use": _moves("down with a support far too wide"),
    "isv_entropy": _moves("down as returns are learned"),
    "isv_td_error": _moves("down with a wider support"),
    "isv_grad_norm": _moves("up to 1 with a tight clip"),
    "isv_drawdown": _moves("up with the scale of rewards"),
    "isv_phase": _moves("up by 1/T a step, then constant at 1"),
}


def expectation(name: str) -> Expectation | None:
    """Of a field of the records that a learner hands out; None: it has none."""
    if name in RECORD:
        return RECORD[name]
    return next((e for pattern, e in FEATURES.items() if fnmatch.fnmatchcase(name, pattern)), None)


def markdown() -> str:
    """The tables of docs/metrics.md."""
    parts = []
    for title, table in (
        ("step_record", RECORD),
        ("optim_stats", OPTIM),
        ("epoch event", EVENT),
        ("features", FEATURES),
    ):
        rows = "\n".join(f"| `{name}` | {e.kind} | {e.cause} |" for name, e in table.items())
        parts.append(f"## {title}\n\n| metric | expectation | what moves it |\n| --- | --- | --- |\n{rows}\n")
    return "\n".join(parts)


__all__ = [
    "CONSTANT",
    "EVENT",
    "FEATURES",
    "MOVES",
    "OPTIM",
    "RECORD",
    "ZERO",
    "Expectation",
    "expectation",
    "markdown",
]
