"""epoch: what the network expects between epochs, on the last batch and on a validation batch (docs/step/epoch.md). No child of
the step, but an ungraphed user with modules of its own.

Each pass: 1. the network on the rows, 2. `expected_q`, a block a row. The sums over the rows are made on the host in f64, from
copies that wait for the stream (known failure K7).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import EpochConfig
from foxhunt_rt.dqn.children.forward import ForwardWorkspace, record_forward
from foxhunt_rt.dqn.children.isv import append_context
from foxhunt_rt.dqn.extension import Extension, ExtensionError, StepView
from foxhunt_rt.driver import Buffer
from foxhunt_rt.replay.windows import Windows

_MOST_THREADS = 512


@dataclasses.dataclass(frozen=True)
class AtomStatistics:
    """Of the network's distributions on some rows. `to_dict` is JSON-ready.

    Attributes
    ----------
    rows : int
    atom_use : float
        exp(entropy of the mean distribution) / N; 1: uniform, 1/N: one atom.
    entropy : float
        Mean over rows and actions of the entropy of a distribution, over log N.
    edge_mass : float
        Of the mean distribution, on its first and last atom.
    q_mean, q_variance, return_variance : float64 (S,)
        By action, in normalized reward: mean and variance over the rows of its expected return, and the mean variance of the
        return itself.
    """

    rows: int
    atom_use: float
    entropy: float
    edge_mass: float
    q_mean: npt.NDArray[np.float64]
    q_variance: npt.NDArray[np.float64]
    return_variance: npt.NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in dataclasses.asdict(self).items()}


def summarize(q: npt.NDArray[Any], variance: npt.NDArray[Any], entropy: npt.NDArray[Any], mean: npt.NDArray[Any],
              branches: Sequence[int]) -> AtomStatistics:  # fmt: skip
    """Statistics of ``q``, ``variance``, ``entropy`` (R, S) and ``mean`` (R, N); branches count alike, whatever their sizes."""
    share = np.concatenate([np.full(n, 1.0 / (len(branches) * n)) for n in branches])
    q, variance, entropy = (x.astype(np.float64) for x in (q, variance, entropy))
    atoms = mean.astype(np.float64).mean(0)
    used = atoms[atoms > 0]
    return AtomStatistics(
        rows=len(q), atom_use=float(np.exp(-(used * np.log(used)).sum()) / len(atoms)),
        entropy=float(entropy.mean(0) @ share), edge_mass=float(atoms[0] + atoms[-1]), q_mean=q.mean(0),
        q_variance=q.var(0), return_variance=variance.mean(0),
    )  # fmt: skip


class EpochStatistics(Extension):
    """The expected-Q pass.

    Attributes
    ----------
    batch, validation : AtomStatistics or None
        After the last epoch, on its last batch and on the rows of `set_validation`; None: not measured, or no rows given.
    """

    name = "epoch"
    batch: AtomStatistics | None = None
    validation: AtomStatistics | None = None

    def __init__(self, config: EpochConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        rt, shape, layout = step.runtime, step.shape, step.layout
        rows = max(step.drawn.size, self.config.validation_rows)
        self._step, self._user = step, rt.ungraphed("epoch")
        self._validation = rt.zeros((self.config.validation_rows, layout.state_padded), np.float32, "epoch.validation")
        self._windows: Windows | None = None
        if step.drawn.window is not None:
            length = step.drawn.window.states.shape[1]
            self._windows = Windows.allocate(
                rt, self.config.validation_rows, length, layout.state_padded, "epoch.window"
            )
        self._given = 0
        self._work = ForwardWorkspace.create(rt, layout, rows, "epoch")
        sizes = {"q": shape.actions, "variance": shape.actions, "entropy": shape.actions, "mean": shape.atoms}
        self._out = {name: rt.zeros((rows, n), np.float32, f"epoch.{name}") for name, n in sizes.items()}
        self._stamp(1)  # nothing yet: these load what they launch, before any step
        self._launch(self._validation, 1, self._windows)

    def set_validation(self, states: npt.NDArray[np.float32]) -> None:
        """The validation batch until the next `reset`.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        states : float32 (V, S)
            At most ``epoch.validation_rows`` rows, at least one. To a network that looks back each is the first of an episode.
            With isv on they are without its columns: the pass takes the vector as it stands.
        """
        most, width = self.config.validation_rows, self._step.layout.state_dim - self._step.replay.context_dim
        if states.ndim != 2 or not 1 <= len(states) <= most or states.shape[1] != width:
            raise ExtensionError(f"validation states are {states.shape}: give 1 to {most} rows of {width} floats")
        padded = np.zeros(self._validation.shape, np.float32)
        padded[: len(states), :width] = states
        self._validation.copy_from(padded)
        if self._windows is not None:  # the last of each window; what lies before it is not held
            held = np.zeros(self._windows.states.shape, np.float32)
            held[:, -1] = padded
            self._windows.states.copy_from(held)
            self._windows.length.copy_from(np.ones(most, np.int32))
        self._given = len(states)

    def _launch(self, states: Buffer, rows: int, windows: Windows | None) -> None:
        step, shape, user = self._step, self._step.shape, self._user
        theta = step.adam.theta[: step.layout.forward_size]
        record_forward(user, step.layout, theta, states, rows, self._work, windows)  # type: ignore[arg-type]
        k, s, n = len(shape.branches), shape.actions, shape.atoms
        user.launch("expected_q", (rows,), (32 * min(s, _MOST_THREADS // 32),), dict(
            {name: buffer[:rows] for name, buffer in self._out.items()}, logits=self._work.logits[:rows], control=step.control,
            branch_sizes=shape.packed_branches, R=rows, K=k, S=s, N=n, Np=shape.head_padded),
            shared=4 * (k * n + 3 * s))  # fmt: skip

    def measure(self, states: Buffer, rows: int, windows: Windows | None = None) -> AtomStatistics:
        """Statistics of the online network on the first ``rows`` of ``states``, f32 (at least ``rows``, Sp); ``windows`` end in
        them, for a network that looks back.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self._launch(states, rows, windows)
        found = {name: buffer[:rows].to_numpy() for name, buffer in self._out.items()}
        return summarize(**found, branches=self._step.shape.branches)

    def end_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        drawn = self._step.drawn
        self.batch = self.measure(drawn.state, drawn.size, drawn.window)
        if self._given:
            self._stamp(self._given)
        self.validation = self.measure(self._validation, self._given, self._windows) if self._given else None

    def _stamp(self, rows: int) -> None:
        """The context of now in the first ``rows`` validation states, where states have one."""
        context, layout = self._step.replay.context, self._step.layout
        for states in (self._validation, None if self._windows is None else self._windows.states):
            if context is not None and states is not None:
                append_context(self._user, context, states, rows, layout.state_dim - context.size)

    def reset(self) -> None:
        self._given, self.batch, self.validation = 0, None, None

    def report(self) -> dict[str, Any]:
        return {name: found.to_dict() for name in ("batch", "validation") if (found := getattr(self, name)) is not None}


def statistics_of(extensions: Sequence[Extension]) -> EpochStatistics | None:
    """The one among a learner's extensions, if ``epoch.enabled``."""
    return next((e for e in extensions if isinstance(e, EpochStatistics)), None)


def last_batch(extensions: Sequence[Extension]) -> AtomStatistics:
    """What an epoch's end found on the last batch.

    Raises
    ------
    ExtensionError
        Nothing was measured.
    """
    found = statistics_of(extensions)
    if found is None or found.batch is None:
        raise ExtensionError("nothing was measured at this epoch's end: set epoch.enabled=true, and let it stand first")
    return found.batch


__all__ = ["AtomStatistics", "EpochStatistics", "last_batch", "statistics_of", "summarize"]
