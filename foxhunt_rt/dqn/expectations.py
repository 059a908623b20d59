"""What every number that is logged should do, in one table: a metric that never moves is one that nobody checks (known failure
K6). docs/metrics.md shows it; tests/dqn/plants.py has a planted cause for each. A metric without an entry, without a plant, or
which its plant moves in another direction than stands here, is refused.

moves      differs from step to step, or epoch to epoch, of any training
constant   stays as the settings have it, until they change it
zero       0 unless something is wrong
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

MOVES, CONSTANT, ZERO = "moves", "constant", "zero"
UP, DOWN = "up", "down"


@dataclass(frozen=True)
class Expectation:
    """What a metric does in an ordinary training, and where a cause moves it.

    Attributes
    ----------
    kind : str
        `MOVES`, `CONSTANT` or `ZERO`.
    direction : str
        `UP` or `DOWN`: where the cause moves it.
    cause : str
        To be read behind the direction.
    note : str
        What a value means.
    """

    kind: str
    direction: str
    cause: str
    note: str = ""


def _moves(direction: str, cause: str, note: str = "") -> Expectation:
    return Expectation(MOVES, direction, cause, note)


def _constant(direction: str, cause: str, note: str = "") -> Expectation:
    return Expectation(CONSTANT, direction, cause, note)


def _zero(direction: str, cause: str, note: str = "") -> Expectation:
    return Expectation(ZERO, direction, cause, note)


_SCALE = _constant(DOWN, "with a tight loss.grad_budget", "1 while its gradient is within its share")


#: Fields of `step_record`, `alarm_*` being those of `alarm_block`.
RECORD: Mapping[str, Expectation] = {
    "sequence": _moves(UP, "by one a step"),
    "step": _moves(UP, "by one a step"),
    "started_ns": _moves(UP, "with the device's clock"),
    "ended_ns": _moves(UP, "with the device's clock, above started_ns"),
    "guard_key": _constant(DOWN, "with a NaN parameter", "all ones; a fault claims it"),
    "loss": _moves(UP, "with the scale of rewards"),
    "ce": _moves(DOWN, "as known returns are learned"),
    "mse": _moves(UP, "with the scale of rewards"),
    "td_error": _moves(UP, "with the scale of rewards"),
    "q_mean": _moves(UP, "with rewards that are higher throughout"),
    "q_min": _moves(DOWN, "with rewards that are lower throughout"),
    "q_max": _moves(UP, "with rewards that are higher throughout"),
    "target_mean": _moves(UP, "with rewards that are higher throughout"),
    "weight_mean": _moves(UP, "to 1 when beta_per is 0"),
    "atom_use": _moves(DOWN, "with a support far too wide"),
    "edge_mass": _moves(UP, "with a support too narrow"),
    "spike_share": _zero(UP, "when less mass on one atom counts as a spike", "while targets are spread"),
    "grad_norm": _moves(UP, "with the scale of rewards"),
    "clip": _constant(DOWN, "with a tight one", "1 while the gradient is within the clip"),
    "ce_scale": _constant(DOWN, "with a tight loss.grad_budget", "1 while its gradient is within the budget"),
    "mse_scale": _constant(DOWN, "with a tight loss.grad_budget", "1 while its gradient is within the budget"),
    "lr": _moves(UP, "with optim.lr"),
    "tau": _moves(UP, "with optim.tau_start"),
    "beta_per": _moves(UP, "with replay.beta_start"),
    "alpha_c51": _constant(UP, "with loss.alpha_c51_start", "through an epoch"),
    "alarm_edge_mass": _zero(UP, "where no edge mass is allowed"),
    "alarm_spike_share": _zero(UP, "where no spike is allowed"),
    "alarm_q_clip": _zero(UP, "where no Q is allowed"),
    "alarm_atom_use": _zero(UP, "where all atoms are asked for"),
    "replay_size": _constant(DOWN, "with a smaller ring", "between inserts"),
    "replay_skipped": _zero(UP, "with a TD error that is not finite"),
}

#: Fields of `optim_stats`, of the network and of each group with an optimizer of its own.
OPTIM: Mapping[str, Expectation] = {
    "grad_norm": _moves(UP, "with the scale of rewards"),
    "clip": _constant(DOWN, "with a tight one", "1 while the gradient is within the clip"),
    "skipped": _zero(UP, "by one a step whose gradient is not finite"),
}

#: Fields of the event at the end of an epoch; those of the records are their means or extremes over the epoch.
EVENT: Mapping[str, Expectation] = {
    "epoch": _moves(UP, "by one an epoch"),
    "steps": _constant(UP, "with train.steps_per_epoch"),
    "step_us_median": _moves(UP, "with larger layers"),
    "best": _moves(DOWN, "in an epoch whose validation ranks below one before", "true in the first"),
    "bars_seen": _constant(UP, "with the training window"),
    "alpha_c51": _moves(UP, "by loss.alpha_c51_step an epoch, to alpha_c51_end"),
    "epsilon": _moves(DOWN, "to train.epsilon_end"),
    **{name: RECORD[name] for name in ("loss", "ce", "mse", "td_error", "atom_use", "grad_norm")},
    "q_min": _moves(DOWN, "with higher costs"),
    "q_max": _moves(UP, "with lower costs"),
    "validation": _moves(UP, "with lower costs, in its net profit", "docs/market.md"),
    "features": _moves(UP, "by what features report, an entry each", "docs/step"),
    "collection": _moves(UP, "by what collection adds, an entry each", "docs/counterfactual.md"),
}

#: Metrics of the features of the step: docs/step/ has a page for each.
FEATURES: Mapping[str, Expectation] = {
    "her_offset": _moves(DOWN, "with shorter episodes", "0 where each has one transition"),
    "her_return": _moves(UP, "with her.tolerance, where the reward is for reaching"),
    "her_reached": _moves(UP, "with shorter episodes"),
    "denoise_loss": _moves(DOWN, "as the head learns"),
    "denoise_noise": _moves(UP, "with the square of denoise.sigma"),
    "denoise_scale": _SCALE,
    "popart_sigma": _moves(UP, "with the spread of rewards"),
    "popart_scale": _moves(UP, "while sigma rises", "within popart.max_change of 1; 1 when sigma rests"),
    "spectral_sigma_max": _moves(UP, "with a learning rate out of measure"),
    "spectral_projected": _zero(UP, "with a bound that every matrix meets"),
    "depth_kept": _moves(DOWN, "with depth.drop"),
    "temporal_ratio": _moves(UP, "with a larger W_out", "0: the block is dead"),
    "temporal_memory": _moves(DOWN, "with faster decay"),
    "temporal_length": _moves(DOWN, "with shorter episodes", "for one ring and policy by the draw alone"),
    "attention_ratio": _moves(UP, "with a larger W_out", "0: the block is dead"),
    "attention_present": _moves(UP, "to 1 at an episode's first state"),
    "attention_entropy": _moves(DOWN, "with sharper scores"),
    "causal_largest": _moves(UP, "with a feature that Q depends on"),
    "causal_entropy": _moves(DOWN, "when one group matters alone"),
    "cql_loss": _moves(DOWN, "as the actions taken become the best ones"),
    "cql_scale": _SCALE,
    "iql_loss": _moves(UP, "with the scale of rewards"),
    "iql_value": _moves(UP, "with tau_iql"),
    "iql_advantage": _moves(DOWN, "with tau_iql"),
    "iqn_loss": _moves(UP, "with the scale of rewards"),
    "iqn_scale": _SCALE,
    "iqn_spread": _moves(UP, "with returns that are spread"),
    "ensemble_loss": _moves(UP, "with noise on the heads' parameters"),
    "ensemble_ce": _moves(
        UP, "with noise on the heads' parameters", "that of the network's own head where they are copies of it"
    ),
    "ensemble_disagreement": _moves(UP, "with noise on the heads' parameters and with ensemble.diversity"),
    "ensemble_similarity": _moves(DOWN, "with noise on the heads' parameters and with ensemble.diversity"),
    "ensemble_scale": _SCALE,
    "homeostat_loss": _moves(UP, "outside its ranges"),
    "homeostat_scale": _SCALE,
    "selectivity_loss": _moves(DOWN, "as the sign of returns is learned"),
    "selectivity_probability": _moves(UP, "with the share of positive returns"),
    "selectivity_rate": _moves(UP, "with the share of positive returns"),
    "risk_pinball": _moves(UP, "with the spread of returns"),
    "risk_shortfall_error": _moves(UP, "with the spread of returns"),
    "risk_quantile": _moves(UP, "with rewards that are higher throughout"),
    "risk_shortfall": _moves(UP, "with rewards that are higher throughout"),
    "risk_below": _moves(DOWN, "to risk.level as the quantile is learned"),
    "horizon_*_error": _moves(DOWN, "as what follows is learned", "1: no better than the mean"),
    "horizon_*_weight": _moves(DOWN, "where the errors of others fall"),
    "horizons_loss": _moves(UP, "with the spread of rewards"),
    "horizons_valid": _moves(DOWN, "with horizons that reach beyond the write head"),
    "horizons_confidence": _moves(UP, "as the errors fall"),
    "horizons_shaping": _moves(UP, "with its bound"),
    "plan_loss": _moves(DOWN, "as the label is learned"),
    "plan_probability": _moves(UP, "with the share of rows worth it"),
    "plan_rate": _moves(UP, "with the share of rows worth it"),
    "plan_held_out": _moves(UP, "with plan.holdout"),
    "plan_skill": _moves(UP, "where held-out rows are predicted"),
    "plan_readiness": _zero(UP, "once the skill was positive for long enough"),
    "plan_conviction": _constant(
        DOWN, "with the conviction at which rows were collected", "1 until readiness is earned"
    ),
    "prune_sparsity": _constant(UP, "by the schedule, from epoch to epoch", "through an epoch"),
    "vaccine_cosine": _moves(DOWN, "with gradients that disagree"),
    "vaccine_target": _moves(DOWN, "with cosines below it"),
    "vaccine_added": _moves(UP, "where the cosine is under its target"),
    "isv_atom_use": _moves(DOWN, "with a support far too wide"),
    "isv_entropy": _moves(DOWN, "as returns are learned"),
    "isv_td_error": _moves(DOWN, "with a wider support"),
    "isv_grad_norm": _moves(UP, "to 1 with a tight clip"),
    "isv_drawdown": _constant(UP, "with the scale of rewards", "between inserts"),
    "isv_phase": _moves(UP, "by 1/T a step, to 1"),
}


#: Title of each table in docs/metrics.md, what stands before the names of its metrics in `expectation`, and the table.
TABLES: tuple[tuple[str, str, Mapping[str, Expectation]], ...] = (
    ("step_record", "", RECORD),
    ("optim_stats", "optim_stats.", OPTIM),
    ("epoch event", "epoch.", EVENT),
    ("features", "", FEATURES),
)


def declared() -> dict[str, Expectation]:
    """Every metric, or pattern of metrics, with its expectation."""
    return {prefix + name: e for _, prefix, table in TABLES for name, e in table.items()}


def expectation(name: str) -> Expectation | None:
    """Of a metric; None: it has none. Those of `OPTIM` and `EVENT` are called `optim_stats.skipped`, `epoch.best`."""
    found = declared()
    return found.get(name) or next((e for pattern, e in FEATURES.items() if fnmatch.fnmatchcase(name, pattern)), None)


def markdown() -> str:
    """The tables of docs/metrics.md."""
    parts = []
    for title, _, table in TABLES:
        rows = "\n".join(f"| `{name}` | {e.kind} | {e.direction} {e.cause} | {e.note} |" for name, e in table.items())
        parts.append(
            f"## {title}\n\n| metric | expectation | what moves it | what it says |\n| --- | --- | --- | --- |\n{rows}\n"
        )
    return "\n".join(parts)


__all__ = [
    "CONSTANT",
    "DOWN",
    "EVENT",
    "FEATURES",
    "MOVES",
    "OPTIM",
    "RECORD",
    "TABLES",
    "UP",
    "ZERO",
    "Expectation",
    "declared",
    "expectation",
    "markdown",
]
