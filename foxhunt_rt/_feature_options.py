"""Options of the features that the training step, collection's rows and the ends of epochs have beyond the core: a section each.

All are off by default. They are fields of `foxhunt_rt.config.Config`; import them from there. docs/configuration.md has the list.
"""

from __future__ import annotations

import dataclasses

from foxhunt_rt._options import ConfigError, Section, option

__all__ = [
    "AdaptiveGammaConfig",
    "AttentionConfig",
    "CausalConfig",
    "CqlConfig",
    "DenoiseConfig",
    "DepthConfig",
    "EnsembleConfig",
    "EpochConfig",
    "HeadConfig",
    "HerConfig",
    "HomeostatConfig",
    "HorizonsConfig",
    "IqlConfig",
    "IqnConfig",
    "IsvConfig",
    "PerturbConfig",
    "PlanConfig",
    "PopArtConfig",
    "PruneConfig",
    "RiskConfig",
    "SelectivityConfig",
    "SpectralConfig",
    "TemporalConfig",
    "VaccineConfig",
]


@dataclasses.dataclass(frozen=True)
class HerConfig(Section):
    """Hindsight experience replay (Andrychowicz 2017): docs/step/her.md."""

    section = "her"
    enabled: bool = option(
        False, "append rows that have a goal which their episode achieved later; market states get a goal slot"
    )
    rows: int = option(32, "rows appended a step (B_her)", low=1, high=1 << 16)
    reward: str = option(
        "return", "of a goal: the return up to it, or 0 where it is met and else -1", choices=("return", "reach")
    )
    target: float = option(
        5.0, "market: return that every episode is to reach, in the unit of the profit features", low=0.0
    )
    tolerance: float = option(0.05, "reward reach: distance within which a goal is met", low=0.0)
    achieved_column: int = option(
        -1, "first column of a state with what was achieved; -1: the market's, an agent must name it", low=-1
    )
    goal_column: int = option(-1, "first column of a state with the goal; -1: the same", low=-1)
    goal_width: int = option(1, "columns of each", low=1, high=1024)


@dataclasses.dataclass(frozen=True)
class PopArtConfig(Section):
    """Returns in units of their running deviation (after van Hasselt 2016): docs/step/popart.md."""

    section = "popart"
    enabled: bool = option(
        False, "divide returns by their deviation, as collected; loss.reward_scale is where it starts"
    )
    min_count: int = option(1024, "returns collected before the deviation counts", low=2)
    max_change: float = option(0.02, "the scale changes by at most this share a step", above=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class SpectralConfig(Section):
    """Bound on the largest singular value of the trunk's weight matrices (after Miyato 2018)."""

    section = "spectral"
    enabled: bool = option(False, "one power iteration and a projection each step")
    sigma_max: float = option(3.0, "the bound; a trunk starts at 1 to 2", above=0.0)


@dataclasses.dataclass(frozen=True)
class DepthConfig(Section):
    """Stochastic depth (Huang 2016): docs/step/stochastic_depth.md."""

    section = "depth"
    enabled: bool = option(False, "leave residual blocks out of rows by chance, in training alone")
    # The paper's 0.5 is for 54 blocks and more; of one or two it would take half the trunk.
    drop: float = option(
        0.2, "chance that the last block is left out of a row; it falls linearly towards the first", low=0.0, below=1.0
    )


@dataclasses.dataclass(frozen=True)
class IsvConfig(Section):
    """Internal state vector: how training stands, as six more columns of a state: docs/step/isv.md."""

    section = "isv"
    enabled: bool = option(False, "append atom use, entropy, |delta|, gradient norm, drawdown and phase to every state")


@dataclasses.dataclass(frozen=True)
class VaccineConfig(Section):
    """Gradient vaccine (Wang 2021): docs/step/vaccine.md."""

    section = "vaccine"
    enabled: bool = option(False, "bend the gradient towards that of the step before")
    period: int = option(10, "steps from one vaccine to the next", low=2, high=1 << 30)
    rate: float = option(0.01, "share of a new cosine in the running target", above=0.0, high=1.0)
    target_max: float = option(0.999, "the target never exceeds this", low=0.0, high=0.999)


@dataclasses.dataclass(frozen=True)
class CausalConfig(Section):
    """Causal intervention: docs/step/causal.md."""

    section = "causal"
    enabled: bool = option(False, "measure how much Q changes when a group of features is set to its reference")
    period: int = option(50, "steps from one intervention to the next", low=1, high=1 << 30)
    groups: tuple[int, ...] = option(
        (),
        "columns of each group of features, from the first column of the state on; empty: each column by itself",
        low=1,
    )
    rows: int = option(32, "rows of the batch that are intervened on, at most", low=1, high=1 << 16)
    reference: str = option(
        "mean", "what a group is set to: its mean over those rows, or zero", choices=("mean", "zero")
    )
    rate: float = option(0.1, "share of a new effect in the running importance", above=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class PruneConfig(Section):
    """Magnitude pruning of the trunk's weights, by the schedule of Zhu & Gupta 2017: docs/step/prune.md."""

    section = "prune"
    enabled: bool = option(False, "take the smallest weights out of the trunk, before some epochs")
    sparsity: float = option(0.5, "share of each matrix that is pruned in the end", low=0.0, below=1.0)
    first_epoch: int = option(1, "epoch, from 0, before which the first weights leave", low=0)
    last_epoch: int = option(4, "epoch before which the last weights leave", low=0)

    def check(self) -> None:
        if self.last_epoch < self.first_epoch:
            raise ConfigError(
                f"prune.last_epoch = {self.last_epoch} is before prune.first_epoch = {self.first_epoch}; raise it"
            )


@dataclasses.dataclass(frozen=True)
class PerturbConfig(Section):
    """Shrink-and-perturb (Ash & Adams 2020): docs/step/prune.md."""

    section = "perturb"
    enabled: bool = option(False, "shrink the network's parameters and add noise, before some epochs")
    period: int = option(1, "epochs from one time to the next", low=1)
    shrink: float = option(0.8, "lambda: factor on the parameters", low=0.0, high=1.0)
    sigma: float = option(0.01, "deviation of the noise", low=0.0)


@dataclasses.dataclass(frozen=True)
class EpochConfig(Section):
    """What the network expects between epochs: docs/step/epoch.md."""

    section = "epoch"
    enabled: bool = option(
        False, "measure atom use, entropy, edge mass and variances on the last batch and a validation batch"
    )
    validation_rows: int = option(256, "rows of the validation batch, at most", low=1, high=1 << 16)


@dataclasses.dataclass(frozen=True)
class AdaptiveGammaConfig(Section):
    """A discount that follows the use of the atoms, between epochs: docs/step/epoch.md."""

    section = "adaptive_gamma"
    enabled: bool = option(False, "change loss.gamma between epochs; takes epoch.enabled")
    low: float = option(0.8, "the discount is at least", low=0.0, below=1.0)
    high: float = option(0.99, "the discount is at most; the support is fitted for it", low=0.0, below=1.0)
    use_low: float = option(0.25, "below this atom use the horizon grows", low=0.0, high=1.0)
    use_high: float = option(0.9, "above this atom use the horizon shrinks", low=0.0, high=1.0)
    rate: float = option(0.25, "the horizon 1/(1 - gamma) grows by this share an epoch", above=0.0)

    def check(self) -> None:
        if self.low > self.high or self.use_low >= self.use_high:
            raise ConfigError("adaptive_gamma's low bounds are not below its high ones; give ranges")


@dataclasses.dataclass(frozen=True)
class HomeostatConfig(Section):
    """A regulator of loss weights between epochs, and a bounded loss term: docs/step/epoch.md."""

    section = "homeostat"
    enabled: bool = option(False, "nudge loss weights by what an epoch's end finds; takes epoch.enabled")
    rate: float = option(0.1, "share of its range that a weight moves by at a full violation", above=0.0, high=1.0)
    relax: float = option(
        0.05, "share of the way back to where it started that a weight goes without one", low=0.0, high=1.0
    )
    atom_use: tuple[float, ...] = option(
        (0.15, 0.95), "range of atom use: moves loss.label_smoothing", low=0.0, high=1.0
    )
    entropy: tuple[float, ...] = option(
        (0.3, 0.98), "range of the mean entropy, over log N: moves the loss term's weight", low=0.0, high=1.0
    )
    grad_norm: tuple[float, ...] = option((1e-3, 10.0), "range of the gradient's norm: moves loss.grad_budget", low=0.0)
    weight_norm: tuple[float, ...] = option(
        (0.5, 3.0), "range of the parameters' norm, in units of a fold's first: moves optim.weight_decay", low=0.0
    )
    smoothing_max: float = option(0.05, "loss.label_smoothing is raised to at most", low=0.0, below=1.0)
    budget_factor: float = option(4.0, "loss.grad_budget moves by at most this factor", low=1.0)
    decay_max: float = option(0.01, "optim.weight_decay is raised to at most", low=0.0)
    loss_weight: float = option(0.01, "weight of the loss term at first, and at least; 0: no term", low=0.0)
    loss_weight_max: float = option(0.1, "weight of the loss term at most", low=0.0)
    budget_share: float = option(0.3, "bound on the term's part of dlogits, as a share of loss.grad_budget", above=0.0)

    def check(self) -> None:
        for name in ("atom_use", "entropy", "grad_norm", "weight_norm"):
            bounds = getattr(self, name)
            if len(bounds) != 2 or bounds[0] >= bounds[1]:
                raise ConfigError(f"homeostat.{name} = {bounds} is no range; give the lower and the upper bound")
        if self.loss_weight > self.loss_weight_max:
            raise ConfigError("homeostat.loss_weight is above homeostat.loss_weight_max; lower it")


@dataclasses.dataclass(frozen=True)
class CqlConfig(Section):
    """Conservative Q-learning (Kumar 2020): docs/step/aux.md."""

    section = "cql"
    enabled: bool = option(False, "add the conservative loss to the step")
    alpha: float = option(0.001, "alpha_cql: weight of the loss, by which values shift", above=0.0)
    budget_share: float = option(0.3, "bound on its part of dlogits, as a share of loss.grad_budget", above=0.0)


@dataclasses.dataclass(frozen=True)
class HeadConfig(Section):
    """What every head with an optimizer of its own has."""

    enabled: bool = option(False, "add the head to the step")
    lr_factor: float = option(1.0, "learning rate of the head's own optimizer, as a factor on the step's", above=0.0)
    max_grad_norm: float = option(1.0, "clip of the norm of the head's own gradient", above=0.0)


@dataclasses.dataclass(frozen=True)
class IqlConfig(HeadConfig):
    """A state value by expectile regression, whose advantage modulates the priorities (Kostrikov 2022): docs/step/aux.md."""

    section = "iql"
    tau: float = option(0.7, "tau_iql: expectile of the state value", above=0.0, below=1.0)
    beta: float = option(1.0, "beta_iql: priority factor exp(beta * advantage)", low=0.0)
    modulation_low: float = option(0.5, "the factor is at least", above=0.0, high=1.0)
    modulation_high: float = option(2.0, "the factor is at most", low=1.0)


@dataclasses.dataclass(frozen=True)
class IqnConfig(HeadConfig):
    """Quantiles of the return by implicit quantile networks, whose loss shapes the trunk (Dabney 2018): docs/step/iqn.md."""

    section = "iqn"
    quantiles: int = option(32, "N = N': levels tau, and as many tau', drawn a row", low=1, high=256)
    cosines: int = option(64, "cosine features of a level that its embedding takes", low=1, high=1024)
    kappa: float = option(1.0, "threshold of the Huber loss, in units of normalized reward", above=0.0)
    budget_share: float = option(
        0.3, "bound on its part of the trunk's gradient, as a share of loss.grad_budget", above=0.0
    )
    max_grad_norm: float = option(10.0, "clip of the norm of the head's own gradient, embedding included", above=0.0)


@dataclasses.dataclass(frozen=True)
class EnsembleConfig(HeadConfig):
    """Advantage heads beside the network's own, which choose a* together: docs/step/ensemble.md."""

    section = "ensemble"
    heads: int = option(3, "H: advantage heads in all, the network's own included; 1: none is added", low=1, high=16)
    diversity: float = option(0.01, "lambda: weight of the similarity of the heads' centred advantages", low=0.0)
    spread: float = option(
        0.5, "sigma, in atoms: heads whose centred advantages are further apart count as different", above=0.0
    )
    budget_share: float = option(
        0.3, "bound on the gradient by the heads' logits, as a share of loss.grad_budget", above=0.0
    )
    max_grad_norm: float = option(10.0, "clip of the norm of the heads' own gradient", above=0.0)

    @property
    def on(self) -> bool:
        return self.enabled and self.heads > 1


@dataclasses.dataclass(frozen=True)
class SelectivityConfig(HeadConfig):
    """A head that says whether the return will be positive: docs/step/post_aux.md."""

    section = "selectivity"


@dataclasses.dataclass(frozen=True)
class RiskConfig(HeadConfig):
    """A head for a low quantile of the return and the expected shortfall below it: docs/step/post_aux.md."""

    section = "risk"
    level: float = option(0.05, "of the quantile", above=0.0, below=1.0)


@dataclasses.dataclass(frozen=True)
class HorizonsConfig(HeadConfig):
    """Heads for the net return over several horizons, whose blend shapes the targets: docs/step/multi_horizon.md."""

    section = "horizons"
    lengths: tuple[int, ...] = option(
        (1, 5, 20, 60), "horizons, in steps of one environment: bars; 1 to 8", low=1, high=1 << 16
    )
    rate: float = option(0.01, "share of a new batch in the running errors", above=0.0, high=1.0)
    blend_temperature: float = option(1.0, "of the blend: softmax(-error / blend_temperature)", above=0.0)
    ready_steps: int = option(100, "steps in a row in which the blend must explain something before it shapes", low=1)
    bound: float = option(
        0.05, "bound on the potential, as a share of half the support; 0: predict, and shape nothing", low=0.0, high=1.0
    )

    def check(self) -> None:
        if not 1 <= len(self.lengths) <= 8 or len(set(self.lengths)) != len(self.lengths):
            raise ConfigError(f"horizons.lengths = {list(self.lengths)}; give 1 to 8 different horizons")


@dataclasses.dataclass(frozen=True)
class PlanConfig(HeadConfig):
    """Conviction, and the readiness it must earn before it scales anything: docs/step/plan.md."""

    section = "plan"
    length: int = option(20, "steps of one environment over which a plan is to pay: bars", low=1, high=1 << 16)
    holdout: float = option(
        0.2, "share of time, or episodes, that the head is judged on and never trained on", above=0.0, below=1.0
    )
    block_bars: int = option(256, "bars that are held out, or trained on, together", low=1, high=1 << 24)
    rate: float = option(0.01, "share of a new batch in the running skill", above=0.0, high=1.0)
    ready_steps: int = option(500, "M: steps in a row with positive skill before there is any readiness", low=1)
    gate_readiness: float = option(
        0.5, "readiness from which conviction scales size and training reward", above=0.0, high=1.0
    )

    def check(self) -> None:
        if self.block_bars < self.length:
            raise ConfigError(
                f"plan.block_bars = {self.block_bars} is under plan.length = {self.length}; give at least that"
            )


@dataclasses.dataclass(frozen=True)
class TemporalConfig(HeadConfig):
    """A Mamba-2 block over the last network.window states, in front of the trunk (Dao & Gu 2024): docs/step/temporal.md."""

    section = "temporal"
    enabled: bool = option(False, "add the block to the network")
    heads: int = option(4, "H: heads of the scan, each with a decay of its own", low=1, high=64)
    head_dim: int = option(16, "D: channels of a head", low=1, high=256)
    state_dim: int = option(
        16, "N: state channels, over which a position is weighed against the present", low=1, high=256
    )
    conv: int = option(4, "width of the causal convolution, in states", low=1, high=16)


@dataclasses.dataclass(frozen=True)
class AttentionConfig(HeadConfig):
    """Attention of the present state over the last network.window (Vaswani 2017): docs/step/attention.md."""

    section = "attention"
    enabled: bool = option(False, "add the block to the network")
    heads: int = option(4, "H: heads of the attention", low=1, high=64)
    head_dim: int = option(16, "D: channels of a head", low=1, high=256)


@dataclasses.dataclass(frozen=True)
class DenoiseConfig(HeadConfig):
    """Noised rows, and a head that says what they were before: docs/step/denoise.md."""

    section = "denoise"
    rows: int = option(32, "noised rows appended a step (B_dn)", low=1, high=1 << 16)
    sigma: float = option(0.1, "deviation of the noise on each column of the state", above=0.0)
    shape_trunk: bool = option(True, "the loss shapes the trunk, too")
    trunk_weight: float = option(1.0, "weight of the loss there", above=0.0)
    budget_share: float = option(
        0.3, "bound on its part of the trunk's gradient, as a share of loss.grad_budget", above=0.0
    )
