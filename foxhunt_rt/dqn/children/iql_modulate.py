"""iql_modulate: priorities by advantage (docs/step/iql_modulate.md). One launch; td_error changes in place, after everything else
that reads it and before per_priority.
"""

from __future__ import annotations

from foxhunt_rt.config import IqlConfig
from foxhunt_rt.dqn.extension import StepView
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi


def add(step: StepView, config: IqlConfig, rows: Buffer) -> None:
    """Appends the child before per_priority.

    Parameters
    ----------
    rows : Buffer
        f32 (B or more, 4) of `aux.Iql`: the advantages.
    """
    per_block, batch = abi.constant("IQL_MODULATE_ROWS"), step.drawn.size
    with step.child("iql_modulate", before="per_priority", reads=[rows], writes=[step.drawn.td_error]) as child:
        child.launch("iql_modulate", grid=(-(-batch // per_block),), block=(256,),
                     args=dict(rows=rows, td_error=step.drawn.td_error, beta=config.beta, low=config.modulation_low,
                               high=config.modulation_high, B=batch))  # fmt: skip


__all__ = ["add"]
