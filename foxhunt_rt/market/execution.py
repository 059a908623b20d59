"""What trading costs in the environment, and the scales of its portfolio features: the `market_block` of the kernels.

Costs come from the contract (`ContractSpec`: tick, multiplier, fee, half-spread, slippage), the rest from the
configuration (`MarketConfig`); nothing here has a default of its own. Ticks are ticks of price, money is in the
contract's currency.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foxhunt_rt.kernels import abi

if TYPE_CHECKING:
    from foxhunt_rt.config import MarketConfig

    from .contract import ContractSpec

__all__ = [
    "GOAL_FEATURES",
    "GOAL_NAMES",
    "PORTFOLIO_DIRECTIONAL",
    "PORTFOLIO_FEATURES",
    "PORTFOLIO_NAMES",
    "ExecutionModel",
    "fit_pnl_scale_ticks",
]

PORTFOLIO_NAMES = ("position", "unrealized_pnl", "time_in_trade", "drawdown")
#: Which of them change sign in the mirrored market: the side, and not what it earned, how long or how deep.
PORTFOLIO_DIRECTIONAL = (True, False, False, False)
PORTFOLIO_FEATURES = len(PORTFOLIO_NAMES)
GOAL_NAMES = ("achieved_return", "goal_return")
GOAL_FEATURES = len(GOAL_NAMES)

_UNFINISHED = {
    "sharpe": "the differential Sharpe ratio's running moments would have to be part of the state first",
    "rank": "ranks are taken over the collected batch, a later pass than the environment",
}


@dataclasses.dataclass(frozen=True)
class ExecutionModel:
    """Costs and scales of one environment.

    Attributes
    ----------
    tick : float
        Price of a tick.
    tick_value : float
        Money a tick and contract.
    fee : float
        Money a contract and side.
    half_spread, slippage, stop_offset : float
        Ticks: half the bid-ask spread; slippage at urgency factor 1; last close to a stop's trigger.
    slippage_range : float
        Share of the bar's range added to the slippage before the factor.
    urgency : (float, float, float)
        Factors on the slippage: passive, normal, aggressive.
    position_limit : int
        Contracts at full size.
    drawdown_penalty : float
        0: the reward is the net change of equity. Else its share of each deepening of the drawdown is taken off.
    pnl_scale : float
        Money that reads 1 in the portfolio features.
    time_scale : float
        Bars in a trade that read 1/2 in the portfolio features.
    goal : float
        Return that an episode is to reach, in units of pnl_scale; read where states have a goal slot.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    tick: float
    tick_value: float
    fee: float
    half_spread: float
    slippage: float
    slippage_range: float
    urgency: tuple[float, float, float]
    stop_offset: float
    position_limit: int
    drawdown_penalty: float
    pnl_scale: float
    time_scale: float
    goal: float = 0.0

    def __post_init__(self) -> None:
        positive = ("tick", "tick_value", "position_limit", "pnl_scale", "time_scale")
        for field in dataclasses.fields(self):
            for value in np.atleast_1d(getattr(self, field.name)):
                if not math.isfinite(value) or value < 0 or (field.name in positive and value == 0):
                    bound = "a finite number above 0" if field.name in positive else "a finite number of at least 0"
                    raise ValueError(f"execution model: {field.name} = {value}; give {bound}")
        if len(self.urgency) != 3:
            raise ValueError(f"execution model: {len(self.urgency)} urgency factors; give 3, passive first")

    @classmethod
    def from_config(
        cls, config: MarketConfig, contract: ContractSpec, pnl_scale_ticks: float, goal: float = 0.0
    ) -> ExecutionModel:
        """The model of a contract.

        Parameters
        ----------
        config : MarketConfig
        contract : ContractSpec
        pnl_scale_ticks : float
            Profit a contract, in ticks, that reads 1: `config.pnl_scale_ticks`, or `fit_pnl_scale_ticks` of the
            training window where that is 0.
        goal : float
            Return that an episode is to reach, in units of pnl_scale (``her.target``).

        Raises
        ------
        NotImplementedError
            `config.reward` names a reward that this environment does not compute.
        """
        if config.reward not in ("net", "drawdown"):
            raise NotImplementedError(
                f"market.reward = {config.reward!r} is not there: {_UNFINISHED[config.reward]}; choose net, drawdown"
            )
        passive, normal, aggressive = config.slippage_urgency
        return cls(
            tick=contract.tick,
            tick_value=contract.tick_value,
            fee=contract.fee,
            half_spread=contract.half_spread_ticks,
            slippage=contract.slippage_ticks,
            slippage_range=config.slippage_range,
            urgency=(passive, normal, aggressive),
            stop_offset=config.stop_offset_ticks,
            position_limit=config.position_limit,
            drawdown_penalty=config.drawdown_penalty if config.reward == "drawdown" else 0.0,
            pnl_scale=pnl_scale_ticks * contract.tick_value * config.position_limit,
            time_scale=config.time_scale,
            goal=goal,
        )

    def to_block(self) -> NDArray[Any]:
        """The kernels' struct: `market_block` (1,)."""
        block = np.zeros(1, abi.dtype("market_block"))
        for field in dataclasses.fields(self):
            if field.name not in ("tick", "urgency"):
                block[field.name] = getattr(self, field.name)
        block["urgency_passive"], block["urgency_normal"], block["urgency_aggressive"] = self.urgency
        return block


def fit_pnl_scale_ticks(close: ArrayLike, ends: NDArray[np.int32], first: int, stop: int, tick: float) -> float:
    """The root mean square move of a position's typical hour (60 bars, by square-root scaling), in ticks, at least 1.

    Parameters
    ----------
    close : float (n,)
        Prices.
    ends : int32 (n,)
        `walks.session_ends`; moves across sessions are left out.
    first, stop : int
        The training window; no other bar is looked at.
    tick : float
    """
    window = np.asarray(close, np.float64)[first:stop]
    same = ends[first : stop - 1] == ends[first + 1 : stop]
    moves = np.diff(window)[same] / tick
    if len(moves) == 0:
        raise ValueError(f"bars [{first}, {stop}) hold no move inside a session; give a longer training window")
    return max(1.0, math.sqrt(60.0 * float(np.mean(moves * moves))))
