"""The configuration: one tree of frozen dataclasses, and the only place in the package that holds a default.

The sections of the features beyond the core stand in `_feature_options.py`, what a section is made of in `_options.py`.

Programs, children and kernels take their numbers from here and have none of their own (known failure K20: a default of
64 quantiles in one program overrode the configuration's 32). Every value is checked where it is made, so a `Config` that
exists is valid; a wrong one raises `ConfigError`, one line that names the key and ends with the mend.

    Config.profile("smoke")                              a named starting point
    Config.load("run.toml"), config.save("run.toml")     TOML, complete in both directions
    config.with_set(["optim.lr=3e-4", "network.hidden=64,64"])   what the command line's --set does

Names follow the papers: a share or a coefficient carries what it belongs to (`replay.alpha` is the exponent of Schaul
2016, `loss.alpha_c51` the share of the cross-entropy), never a bare Greek letter.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foxhunt_rt._feature_options import (
    AdaptiveGammaConfig,
    AttentionConfig,
    CausalConfig,
    CqlConfig,
    DenoiseConfig,
    DepthConfig,
    EnsembleConfig,
    EpochConfig,
    HeadConfig,
    HerConfig,
    HomeostatConfig,
    HorizonsConfig,
    IqlConfig,
    IqnConfig,
    IsvConfig,
    PerturbConfig,
    PlanConfig,
    PopArtConfig,
    PruneConfig,
    RiskConfig,
    SelectivityConfig,
    SpectralConfig,
    TemporalConfig,
    VaccineConfig,
)
from foxhunt_rt._optional import require
from foxhunt_rt._options import ConfigError, Section, hints, kind_of, listed, merged, option, parse, unknown

if TYPE_CHECKING:
    from foxhunt_rt.graph.updates import Slot

__all__ = [
    "AttentionConfig",
    "Config",
    "ConfigError",
    "AdaptiveGammaConfig",
    "CausalConfig",
    "CounterfactualConfig",
    "CqlConfig",
    "DepthConfig",
    "EnsembleConfig",
    "EpochConfig",
    "DenoiseConfig",
    "FeatureConfig",
    "GuardConfig",
    "HerConfig",
    "HeadConfig",
    "HomeostatConfig",
    "HorizonsConfig",
    "IqlConfig",
    "IqnConfig",
    "IsvConfig",
    "LossConfig",
    "MarketConfig",
    "MirrorConfig",
    "NetworkConfig",
    "OptimConfig",
    "PopArtConfig",
    "PerturbConfig",
    "PlanConfig",
    "PruneConfig",
    "ReplayConfig",
    "RiskConfig",
    "SelectivityConfig",
    "SpectralConfig",
    "TemporalConfig",
    "TrainConfig",
    "VaccineConfig",
]


@dataclasses.dataclass(frozen=True)
class NetworkConfig(Section):
    """Trunk and heads; the number of branches and their sizes come from the environment."""

    section = "network"
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers, input side first", low=1, high=65536)
    atoms: int = option(51, "points of the return support (C51, Bellemare 2017)", low=2, high=256)
    residual: bool = option(False, "a hidden layer as wide as the one before is a block x + relu(x W + b) (He 2016)")
    window: int = option(
        16, "L: states that the blocks in front of the trunk look at, where one is on", low=1, high=256
    )
    precision: str = option("fp32", "arithmetic of the matrix products", choices=("fp32", "tf32", "bf16"))
    choices: str = option(
        "", "measured products to keep to: a run folder, checkpoint or golden replay; fresh: measure anew"
    )

    def check(self) -> None:
        if not 1 <= len(self.hidden) <= 8:
            raise ConfigError(f"network.hidden has {len(self.hidden)} layers; give 1 to 8 widths")
        if self.residual and all(a != b for a, b in itertools.pairwise(self.hidden)):
            raise ConfigError(f"network.residual with network.hidden = {', '.join(map(str, self.hidden))}; give two equal "
                              "widths in a row")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ReplayConfig(Section):
    """Prioritized replay on the device (Schaul 2016)."""

    section = "replay"
    capacity: int = option(1 << 20, "rows the ring holds", low=256, high=1 << 24)
    batch: int = option(512, "rows drawn a step (B)", low=1, high=1 << 16)
    n_step: int = option(3, "length of the return window, in steps of one environment", low=1, high=64)
    alpha: float = option(0.6, "alpha_per: priority = (|delta| + eps)^alpha", low=0.0, high=1.0)
    eps: float = option(1e-6, "eps_per, so that no row is lost for ever", above=0.0, high=1.0)
    beta_start: float = option(0.4, "beta_per of the importance weight at step 0", low=0.0, high=1.0)
    beta_end: float = option(1.0, "beta_per at the end of the schedule", low=0.0, high=1.0)

    def check(self) -> None:
        if self.batch > self.capacity:
            raise ConfigError(
                f"replay.batch = {self.batch} exceeds replay.capacity = {self.capacity}; raise the capacity"
            )


@dataclasses.dataclass(frozen=True)
class LossConfig(Section):
    """C51 cross-entropy and expected-value error, blended; support in units of normalized reward."""

    section = "loss"
    gamma: float = option(0.99, "discount of one step", low=0.0, high=1.0)
    v_min: float = option(-10.0, "first atom of the support")
    v_max: float = option(10.0, "last atom of the support")
    reward_scale: float = option(1.0, "normalized reward = raw reward * reward_scale", above=0.0)
    alpha_c51_start: float = option(0.0, "share of the cross-entropy in the first epoch", low=0.0, high=1.0)
    alpha_c51_step: float = option(0.2, "added to the share each epoch", low=0.0, high=1.0)
    alpha_c51_end: float = option(1.0, "the share never exceeds this", low=0.0, high=1.0)
    label_smoothing: float = option(0.0, "eps_smooth: uniform share of the target distribution", low=0.0, below=1.0)
    grad_budget: float = option(1.0, "G, bound on the norm of each part of dlogits; 0: off", low=0.0)
    branch_reduction: str = option("mean", "how the branches' losses combine", choices=("mean", "sum"))

    def check(self) -> None:
        if not self.v_min < self.v_max:
            raise ConfigError(
                f"loss.v_min = {self.v_min:g} is not below loss.v_max = {self.v_max:g}; give a positive width"
            )
        if self.alpha_c51_start > self.alpha_c51_end:
            raise ConfigError("loss.alpha_c51_start is above loss.alpha_c51_end; the share only grows")


@dataclasses.dataclass(frozen=True)
class OptimConfig(Section):
    """AdamW (Kingma 2015, Loshchilov 2019), its learning-rate schedule, and the Polyak average of the target."""

    section = "optim"
    lr: float = option(3e-4, "learning rate at the start of a cosine period", low=0.0)
    lr_min: float = option(3e-5, "learning rate at the end of a cosine period", low=0.0)
    restart_period: int = option(
        0, "steps between warm restarts (Loshchilov 2017); 0: one period of length horizon", low=0
    )
    restart_momentum: float = option(1.0, "factor on Adam's first moment at a restart", low=0.0, high=1.0)
    beta1: float = option(0.9, "decay of Adam's first moment", low=0.0, below=1.0)
    beta2: float = option(0.999, "decay of Adam's second moment", low=0.0, below=1.0)
    eps: float = option(1e-8, "added to the root of Adam's second moment", above=0.0)
    weight_decay: float = option(0.0, "decoupled weight decay", low=0.0)
    max_grad_norm: float = option(10.0, "clip of the gradient's global norm", above=0.0)
    tau_start: float = option(0.01, "tau_polyak at step 0", low=0.0, high=1.0)
    tau_end: float = option(0.005, "tau_polyak at the end of the schedule", low=0.0, high=1.0)
    horizon: int = option(
        0, "T of every schedule, in steps; 0: the steps of one fold (epochs * steps_per_epoch)", low=0
    )

    def check(self) -> None:
        if self.lr_min > self.lr:
            raise ConfigError(f"optim.lr_min = {self.lr_min:g} is above optim.lr = {self.lr:g}; lower it")


@dataclasses.dataclass(frozen=True)
class GuardConfig(Section):
    """Alarms are counted and reported; faults (non-finite values, lost mass, impossible Q) have no settings."""

    section = "guard"
    q_clip: float = option(0.95, "alarm when |Q| is above this share of max|z|", above=0.0, high=1.0)
    edge_mass: float = option(
        0.25, "alarm when the batch's target mass on the two edge atoms is above", above=0.0, high=1.0
    )
    spike_share: float = option(0.5, "alarm when more of the non-terminal targets are spikes", above=0.0, high=1.0)
    spike_mass: float = option(0.95, "a target is a spike when one atom holds more mass than this", above=0.0, high=1.0)
    atom_use: float = option(0.25, "alarm when the batch uses a smaller share of the atoms", low=0.0, below=1.0)
    launches_ahead: int = option(2, "D: launches the host may run ahead of the last record it has read", low=1, high=64)


@dataclasses.dataclass(frozen=True)
class FeatureConfig(Section):
    """Columns of the feature table; every window looks back only. Windows are in bars."""

    section = "market.features"
    return_lags: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64), "lags of the log returns", low=1, high=1 << 16)
    volatility_windows: tuple[int, ...] = option((16, 64, 256), "windows of realized volatility", low=2, high=1 << 16)
    extreme_windows: tuple[int, ...] = option((64, 256), "windows of the rolling extremes", low=2, high=1 << 16)
    volume_window: int = option(64, "window of the volume z-score", low=2, high=1 << 16)
    rsi_period: int = option(14, "period of the relative strength index (Wilder 1978)", low=2, high=4096)
    macd_fast: int = option(12, "span of MACD's fast average", low=2, high=4096)
    macd_slow: int = option(26, "span of MACD's slow average", low=3, high=4096)
    normalizer: str = option("moments", "scale of a column on the training rows", choices=("moments", "robust"))
    clip: float = option(10.0, "normalized features stay within +- this", above=0.0)

    def check(self) -> None:
        if self.macd_fast >= self.macd_slow:
            raise ConfigError(
                f"market.features.macd_fast = {self.macd_fast} is not below macd_slow = {self.macd_slow}; lower it"
            )


@dataclasses.dataclass(frozen=True)
class CounterfactualConfig(Section):
    """Steps that were not taken, replayed beside those that were: docs/counterfactual.md."""

    section = "market.counterfactual"
    enabled: bool = option(False, "insert what another action would have earned in the same state")
    share: float = option(1.0, "counterfactual rows for each step taken", above=0.0, high=1.0)
    cycles: tuple[int, ...] = option(
        (0, 1, 2, 3, 4, 5),
        "what may be changed of the action: 0 direction mirrored, 1 next smaller size, 2 next larger, 3 other order type, "
        "4 other urgency, 5 flat",
        low=0,
        high=5,
    )

    def check(self) -> None:
        if not self.cycles or len(set(self.cycles)) != len(self.cycles):
            raise ConfigError(f"market.counterfactual.cycles = {list(self.cycles)}; give each cycle once, at least one")


@dataclasses.dataclass(frozen=True)
class MirrorConfig(Section):
    """Rows stored as the steps of the mirrored market: docs/counterfactual.md."""

    section = "market.mirror"
    enabled: bool = option(False, "store some rows with long and short swapped, their states mirrored when drawn")
    share: float = option(0.5, "chance that a row is stored mirrored", above=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class MarketConfig(Section):
    """Bars, environment and costs."""

    section = "market"
    environments: int = option(64, "episodes that run in parallel", low=1, high=1 << 16)
    symbol: str = option("", "ticker, expiry or futures root to take from a file of several; empty: the only one")
    timezone: str = option(
        "", "zone of time stamps that carry none (UTC, or an IANA name); empty: such files are refused"
    )
    policy: str = option("raise", "what a faulty bar does", choices=("raise", "drop", "mark"))
    strict: bool = option(False, "doubts (stuck and spiking bars) count as faults")
    adjust: str = option("difference", "prices before a roll are moved by", choices=("none", "difference", "ratio"))
    contract: str = option("auto", "contract preset (ES, 6E, SPY, YNDX, ...); auto: by the symbol of the bars")
    tick: float = option(-1.0, "smallest price step; -1: the preset's", low=-1.0)
    multiplier: float = option(-1.0, "currency of a price step of 1; -1: the preset's", low=-1.0)
    fee: float = option(-1.0, "exchange and broker fees, currency a contract and side; -1: the preset's", low=-1.0)
    half_spread_ticks: float = option(-1.0, "half of the bid-ask spread, in ticks; -1: the preset's", low=-1.0)
    slippage_ticks: float = option(
        -1.0, "slippage of a market order at normal urgency, in ticks; -1: the preset's", low=-1.0
    )
    slippage_range: float = option(0.02, "share of the bar's range added to the slippage", low=0.0)
    slippage_urgency: tuple[float, ...] = option(
        (0.5, 1.0, 2.0), "factors on the slippage: passive, normal, aggressive", low=0.0
    )
    stop_offset_ticks: float = option(1.0, "distance from the last close to a stop's trigger, in ticks", low=0.0)
    position_limit: int = option(4, "contracts at size 1", low=1, high=1 << 16)
    capital: float = option(
        0.0, "equity at the start of a judged window; 0: the notional value of the position limit", low=0.0
    )
    reward: str = option(
        "net", "change of equity net of costs, or named alternatives", choices=("net", "drawdown", "sharpe", "rank")
    )
    drawdown_penalty: float = option(0.5, "reward drawdown: share of each deepening of the drawdown taken off", low=0.0)
    pnl_scale_ticks: float = option(
        0.0, "profit a contract that reads 1 in the portfolio features; 0: fitted on the training window", low=0.0
    )
    time_scale: float = option(30.0, "bars in a trade that read 1/2 in the portfolio features", above=0.0)
    synthetic_bars: int = option(62500, "bars of the simulated market (--synthetic)", low=2, high=1 << 26)
    features: FeatureConfig = option(FeatureConfig(), "columns of the feature table")
    counterfactual: CounterfactualConfig = option(CounterfactualConfig(), "steps that were not taken")
    mirror: MirrorConfig = option(MirrorConfig(), "rows of the mirrored market")

    def check(self) -> None:
        if len(self.slippage_urgency) != 3:
            raise ConfigError(
                f"market.slippage_urgency has {len(self.slippage_urgency)} values; give 3: passive, normal, aggressive"
            )


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section):
    """Walk-forward training."""

    section = "train"
    seed: int = option(0, "of every random number", low=0, high=2**63 - 1)
    folds: int = option(3, "walk-forward folds", low=1, high=1000)
    window: str = option("rolling", "training windows", choices=("rolling", "expanding"))
    validation_share: float = option(0.125, "share of all bars in a validation window", above=0.0, below=1.0)
    test_share: float = option(
        0.125, "share of all bars in a test window, and the step from fold to fold", above=0.0, below=1.0
    )
    embargo: int = option(
        0,
        "bars left out between training, validation and test: 0, or at least the furthest target's; never under the longest "
        "feature's window and that together",
        low=0,
    )
    epochs: int = option(10, "passes over the training window of a fold", low=1)
    steps_per_epoch: int = option(2000, "training steps an epoch", low=1)
    steps_per_launch: int = option(1, "K_launch: training steps that one graph launch runs", low=1, high=1024)
    patience: int = option(0, "a fold ends early after so many epochs without a better validation; 0: never", low=0)
    epsilon_start: float = option(1.0, "epsilon_greedy at the first step of a fold", low=0.0, high=1.0)
    epsilon_end: float = option(0.05, "epsilon_greedy at the end of the schedule", low=0.0, high=1.0)
    collect_steps: int = option(16, "steps of every environment in one launch of collection", low=1, high=1024)
    support: str = option(
        "returns",
        "reward scale and support: from the returns of a random policy, or as loss.* gives them",
        choices=("returns", "config"),
    )
    support_quantile: float = option(
        0.999, "quantile of the normalized absolute returns that the support covers", above=0.0, high=1.0
    )
    support_margin: float = option(1.25, "factor on that quantile: room for a better policy than the random", above=0.0)
    probe_rows: int = option(1024, "fixed rows on which the loss is compared before and after a fold", low=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole configuration. Immutable; change one with `with_set`, `merged` or `dataclasses.replace`."""

    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    her: HerConfig = dataclasses.field(default_factory=HerConfig)
    popart: PopArtConfig = dataclasses.field(default_factory=PopArtConfig)
    temporal: TemporalConfig = dataclasses.field(default_factory=TemporalConfig)
    attention: AttentionConfig = dataclasses.field(default_factory=AttentionConfig)
    spectral: SpectralConfig = dataclasses.field(default_factory=SpectralConfig)
    depth: DepthConfig = dataclasses.field(default_factory=DepthConfig)
    isv: IsvConfig = dataclasses.field(default_factory=IsvConfig)
    vaccine: VaccineConfig = dataclasses.field(default_factory=VaccineConfig)
    causal: CausalConfig = dataclasses.field(default_factory=CausalConfig)
    prune: PruneConfig = dataclasses.field(default_factory=PruneConfig)
    perturb: PerturbConfig = dataclasses.field(default_factory=PerturbConfig)
    cql: CqlConfig = dataclasses.field(default_factory=CqlConfig)
    iql: IqlConfig = dataclasses.field(default_factory=IqlConfig)
    iqn: IqnConfig = dataclasses.field(default_factory=IqnConfig)
    ensemble: EnsembleConfig = dataclasses.field(default_factory=EnsembleConfig)
    selectivity: SelectivityConfig = dataclasses.field(default_factory=SelectivityConfig)
    risk: RiskConfig = dataclasses.field(default_factory=RiskConfig)
    horizons: HorizonsConfig = dataclasses.field(default_factory=HorizonsConfig)
    plan: PlanConfig = dataclasses.field(default_factory=PlanConfig)
    epoch: EpochConfig = dataclasses.field(default_factory=EpochConfig)
    adaptive_gamma: AdaptiveGammaConfig = dataclasses.field(default_factory=AdaptiveGammaConfig)
    homeostat: HomeostatConfig = dataclasses.field(default_factory=HomeostatConfig)
    denoise: DenoiseConfig = dataclasses.field(default_factory=DenoiseConfig)
    market: MarketConfig = dataclasses.field(default_factory=MarketConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)

    @property
    def horizon(self) -> int:
        """T of the schedules, in steps."""
        return self.optim.horizon or self.train.epochs * self.train.steps_per_epoch

    @property
    def reward_horizon(self) -> int:
        """Steps ahead that the furthest target of a row reaches."""
        plan = (self.plan.length,) if self.plan.enabled else ()
        return max((self.replay.n_step, *(self.horizons.lengths if self.horizons.enabled else ()), *plan))

    @property
    def largest_gamma(self) -> float:
        """The largest discount that training may come to: what the support must hold the returns of."""
        return self.adaptive_gamma.high if self.adaptive_gamma.enabled else self.loss.gamma

    def slot(self, name: str) -> Slot:
        """An option as a launch field that `StepGraph.set` may change; it remembers where it comes from.

        Parameters
        ----------
        name : str
            Such as ``"iql.tau"``; without the section where only one has an option of that name.
        """
        from foxhunt_rt.graph.updates import Slot

        section, _, option_name = name.rpartition(".")
        sections = [section] if section else [f.name for f in dataclasses.fields(self)]
        found = [f"{s}.{option_name}" for s in sections if hasattr(getattr(self, s, None), option_name)]
        if len(found) != 1:
            known = f"it could be {', '.join(found)}" if found else "docs/configuration.md lists them"
            raise ConfigError(f"{name} names {len(found)} options; {known}")
        section = found[0].partition(".")[0]
        return Slot(getattr(getattr(self, section), option_name), f"config.{found[0]}")

    def alpha_c51(self, epoch: int) -> float:
        """Share of the cross-entropy in epoch `epoch`, counted from 0."""
        return min(self.loss.alpha_c51_start + self.loss.alpha_c51_step * epoch, self.loss.alpha_c51_end)

    @staticmethod
    def profile(name: str) -> Config:
        """A named starting point: `default`, `smoke` (seconds on a CPU), `full` (smoke with every feature) or
        `production` (every feature, on a large GPU)."""
        if name not in _PROFILES:
            raise ConfigError(unknown(f"profile {name!r}", name, _PROFILES))
        return Config().merged(_PROFILES[name])

    def merged(self, values: Mapping[str, Any]) -> Config:
        """A copy with the nested mapping `values` laid over it; unknown keys are refused, the near one suggested."""
        return typing.cast(Config, merged(self, values, ""))

    def with_set(self, assignments: Iterable[str]) -> Config:
        """A copy with `section.key=value` assignments, of equal keys the last; lists are written `64,64`."""
        values: dict[str, Any] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or "." not in key:
                raise ConfigError(f"cannot read {assignment!r}; write section.key=value, for example optim.lr=3e-4")
            path = [part.strip() for part in key.split(".")]
            table = values
            for part in path[:-1]:
                table = table.setdefault(part, {})
            table[path[-1]] = parse(".".join(path), kind_of(self, path), text.strip())
        return self.merged(values)

    @staticmethod
    def load(path: str | Path, base: Config | None = None) -> Config:
        """Reads TOML; keys that the file leaves out keep the value of `base` (default: `Config()`)."""
        try:
            import tomllib
        except ModuleNotFoundError:  # Python 3.10
            import tomli as tomllib

        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of a TOML file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML ({error}); mend that line") from error
        return (base or Config()).merged(values)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, complete."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """Complete TOML text; `Config.load` of it gives an equal configuration."""
        tomli_w = require("tomli_w", "writing TOML")
        return str(tomli_w.dumps(self.to_dict()))

    def save(self, path: str | Path) -> None:
        """Writes the complete configuration as TOML."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    def options(self) -> Iterator[tuple[str, str, Any, str]]:
        """Every option as (key, type, value, description), in order; `docs/configuration.md` is this list."""
        yield from listed(self, "")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not isinstance(getattr(self, field.name), hints(Config)[field.name]):
                raise ConfigError(f"{field.name} must be a {hints(Config)[field.name].__name__}")
        if 0 < self.train.embargo < self.reward_horizon:
            raise ConfigError(f"train.embargo = {self.train.embargo} bars is under the furthest target's "
                              f"{self.reward_horizon}; set it to at least that, or to 0: as long as need be")  # fmt: skip
        for name in ("adaptive_gamma", "homeostat"):
            if getattr(self, name).enabled and not self.epoch.enabled:
                raise ConfigError(f"{name} decides by what epoch measures; set epoch.enabled=true")
        bounds = self.adaptive_gamma
        if bounds.enabled and not bounds.low <= self.loss.gamma <= bounds.high:
            raise ConfigError(f"loss.gamma = {self.loss.gamma:g} is outside adaptive_gamma.low to high, {bounds.low:g} to "
                              f"{bounds.high:g}; change one")  # fmt: skip
        if self.depth.enabled and not self.network.residual:
            raise ConfigError("depth.enabled without residual blocks to leave out; set network.residual=true")


_SMOKE: dict[str, Any] = {
    "network": {"hidden": (64, 64)},
    # 936 steps a fold is a short life, so returns look 10 bars ahead, learning is quick, the target follows in 50 steps,
    # and the budget keeps the expected-value error, whose gradient is some 30 times as long, from drowning the
    # cross-entropy. What each does to the loss: docs/training.md.
    "replay": {"capacity": 65536, "batch": 64, "n_step": 5},
    "loss": {"gamma": 0.9, "grad_budget": 0.003},
    "optim": {"lr": 1e-3, "lr_min": 3e-4, "tau_start": 0.02, "tau_end": 0.02},
    "train": {"folds": 3, "epochs": 2, "steps_per_epoch": 468},
}
_FEATURES = [  # the sections that switch something on, which profile full does for all
    field.name
    for field in dataclasses.fields(Config)
    if any(option.name == "enabled" for option in dataclasses.fields(hints(Config)[field.name]))
]
#: Every feature of the step, and of what collection adds.
_ALL: dict[str, Any] = {name: {"enabled": True} for name in _FEATURES} | {
    "market": {"counterfactual": {"enabled": True}, "mirror": {"enabled": True}},
    "network": {"residual": True},
}
_PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "smoke": _SMOKE,
    "full": _SMOKE | _ALL | {"network": {**_SMOKE["network"], **_ALL["network"]}},
    "production": _ALL
    | {
        "network": {"hidden": (512, 512, 256), "precision": "tf32", **_ALL["network"]},
        "replay": {"capacity": 1 << 22, "batch": 4096},
        "train": {"folds": 3, "epochs": 10, "steps_per_epoch": 1000},
    },
}
