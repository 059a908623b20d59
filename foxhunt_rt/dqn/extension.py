"""Extending the training step: children, parameters and losses of your own, in the same graph (docs/extending.md).

    class Centre(Extension):
        name = "centre"
        def record(self, step):
            with step.child("centre", after="ddqn", reads=[...], writes=[step.dlogits]) as child:
                child.launch("centre_logits", ...)

    learner = Learner(rt, config, state_dim, branches, extensions=[Centre()])

An extension is asked twice: for its parameters, before anything is allocated, and to record its children, when the children of
the learner are recorded. What its children read and write puts them in order, as everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foxhunt_rt._names import choose
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.blocks import BlockChain, InputBlock
from foxhunt_rt.dqn.children.adam import AdamBuffers
from foxhunt_rt.dqn.children.adam_grad import AdamGradBuffers
from foxhunt_rt.dqn.children.ddqn import DdqnBuffers, LossShape
from foxhunt_rt.dqn.children.forward import ONLINE, ONLINE_NEXT, ForwardBuffers
from foxhunt_rt.dqn.children.products import NetworkProducts
from foxhunt_rt.dqn.children.side_products import SideProducts
from foxhunt_rt.dqn.groups import Groups
from foxhunt_rt.dqn.layout import LayoutError, NetworkLayout, ParameterGroup, Segment
from foxhunt_rt.dqn.schedule import Control
from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError
from foxhunt_rt.graph import Child, Flag, Runtime, StepPlan
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch, Replay


class ExtensionError(FoxhuntError):
    """An extension that does not do what it announced, or that clashes with another."""


class Extension:
    """Something added to the learner's step. Derive from it.

    Attributes
    ----------
    name : str
        Unique among the extensions of a learner.
    metrics : tuple of str
        Numbers that it measures each step: fields of every record, beside the learner's own. Its children write each to
        `StepView.metric(name)`.
    trunk_gradient : bool
        Whether its loss goes back through the trunk: its children then write `StepView.trunk_gradient(name)`.
    appends : int
        Rows that it appends to the batch: its children write all of `StepView.appended(name)` but ``td_error``.
    in_loss : bool
        Whether the rows it appends have the loss of ddqn, and all that goes by `StepView.batch`, as rows drawn do.
    next_values : bool
        Whether it has a say in a*, the action at s': a child of it before ddqn then writes `StepView.next_values`. One
        extension of a learner may.
    """

    name: str = ""
    metrics: tuple[str, ...] = ()
    trunk_gradient: bool = False
    appends: int = 0
    in_loss: bool = True
    next_values: bool = False

    def parameters(self, layout: NetworkLayout) -> Sequence[ParameterGroup]:
        """Its parameters, beside those of the network whose sizes are in ``layout``. Default: none."""
        return ()

    def block(self, config: Config) -> InputBlock | None:
        """The block that it puts in front of the trunk, with a parameter group of the block's name; it then records it before
        ``forward`` and, behind ``adam_grad``, its way back: see `StepView.blocks`. Default: none."""
        return None

    def record(self, step: StepView) -> None:
        """Allocates what it needs and records its children."""
        raise NotImplementedError(
            f"extension {self.name or type(self).__name__} records nothing: define record(self, step)"
        )

    def reset(self) -> None:
        """Puts back what its buffers hold at the start of a fold, parameters aside. The stream is idle. Default: nothing."""

    def serve(self, theta: DeviceBuffer) -> DeviceBuffer:
        """Parameters as they leave the learner, for evaluation and checkpoints of the policy: ``theta``, f32 (P,), or a buffer of
        its own with a changed copy, good until the next call. Never changes ``theta``: training does not notice. Called
        between steps, in the order of the runtime's stream. Default: ``theta``."""
        return theta

    def begin_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        """Changes between epochs, before epoch number ``epoch``, from 0: ungraphed launches by a user of its own, in the order of
        the runtime's stream. ``others``: all extensions of the learner. Default: nothing."""

    def end_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        """Measures and decides after the last step of epoch number ``epoch``, before its validation; ungraphed launches as in
        `begin_epoch`. The learner is drained. Default: nothing."""

    def kept_gradients(self) -> Sequence[Buffer]:
        """Buffers that begin as the network's gradient does: zeroed where parameters are pruned. Default: none."""
        return ()

    def report(self) -> Mapping[str, Any]:
        """What it has to say at the end of an epoch beside its metrics: JSON-ready. May synchronize. Default: nothing."""
        return {}

    def persistent(self) -> Mapping[str, DeviceBuffer]:
        """Buffers of its own, by name, whose contents a step hands to the next: checkpoints hold them. Default: none."""
        return {}


@dataclass(frozen=True)
class GroupView:
    """The parameters of one group in the step's flat buffers. Each call gives a view of the tensor's padded shape."""

    group: ParameterGroup
    segments: tuple[Segment, ...]
    groups: Groups
    adam: AdamBuffers
    buffers: AdamGradBuffers

    def theta(self, tensor: str) -> Buffer:
        """The online parameters of a tensor, padded, f32."""
        return self._of(self.adam.theta, tensor)

    def target(self, tensor: str) -> Buffer:
        """Their Polyak average."""
        return self._of(self.adam.target, tensor)

    def grad(self, tensor: str) -> Buffer:
        """Where their gradient goes: written by the group's own children, pads zero, before `record_squares`."""
        return self._of(self.buffers.grad, tensor)

    @property
    def gradient(self) -> list[Buffer]:
        """What a child declares as written that makes the group's gradient and its squares."""
        begin, stop = self.segments[0].offset, self.segments[-1].stop
        first, last = self.groups.parts_of(self.group.name)
        return [self.buffers.grad[begin:stop], self.buffers.norm_part[first:last]]

    def runs(self, rt: Runtime, parts: Mapping[str, tuple[int, int, int]]) -> Buffer:
        """The table that `record_squares` takes, grad_run (tensors,): of the tensors named in ``parts`` the place of the first
        partial gradient, the distance to the next and their number, in floats; the others' gradients are written whole.
        Allocates, synchronizes."""
        start, prefix = self.segments[0].offset, f"{self.group.name}."
        rows = [(s.offset - start, s.stop - start, *parts.get(s.name.removeprefix(prefix), (0, 0, 0)), 0)
                for s in self.segments]  # fmt: skip
        return rt.array(np.array(rows, abi.dtype("grad_run")), f"{self.group.name}.runs")

    def record_squares(self, child: Child, partial: Buffer | None = None, runs: Buffer | None = None,
                       most_parts: int = 0) -> None:  # fmt: skip
        """Records one launch that squares the group's gradient for the clip: in the child that wrote it, as the last launch.

        With ``partial``, ``runs`` and ``most_parts`` it first adds gradients that were made in parts: see
        `Groups.record_squares`.
        """
        self.groups.record_squares(
            child, self.group, self.buffers.grad, self.buffers.norm_part, partial, runs, most_parts
        )

    def _of(self, flat: Buffer, tensor: str) -> Buffer:
        for segment in self.segments:
            if segment.name == f"{self.group.name}.{tensor}":
                view: Buffer = flat[segment.offset : segment.stop].view(segment.padded_shape)
                return view
        names = ", ".join(t.name for t in self.group.tensors)
        raise LayoutError(f"group {self.group.name} has no tensor {tensor}: it has {names}")


@dataclass(frozen=True)
class StepView:
    """The learner's step, as an extension sees it. All buffers are those of the learner, not copies.

    Attributes
    ----------
    runtime : Runtime
    plan : StepPlan
    config : Config
    layout : NetworkLayout
    shape : LossShape
    batch : Batch
        The rows that have a loss, M: those drawn, B, then those that extensions appended to them. M = B where none does.
    drawn : Batch
        The rows drawn alone.
    all_rows : Batch
        All rows, R, that the network runs on.
    ret : Buffer
        f32 (M,), n-step returns in units of the support: ``batch.ret``, or with popart on what that makes of it.
    shaped_ret : Buffer
        f32 (M,), what ddqn takes for them: ``ret``, or with horizons on that and a potential's difference.
    replay : Replay
    step : Buffer
        step_block[1], latched by counters: step, learning rate, gamma, seeds, alpha_c51 and the like.
    state : Buffer
        train_state[1]: counters as the next step will find them.
    settings : Control
        What the host may change while training runs: `Control.set`, in stream order.
    control, guard : Buffer
        control_block[1], guard_block[1].
    forward : ForwardBuffers
        Hidden activations and logits of the three passes, of R rows: M, then those that were appended without a loss.
    depth : Buffer or None
        f32 (blocks, R), factors on residual blocks in the pass on s; None: stochastic depth is off.
    ddqn : DdqnBuffers
    adam : AdamBuffers
        Parameters, target, moments.
    grad : AdamGradBuffers
    products : NetworkProducts
        Who makes which product of the network.
    blocks : BlockChain
        The blocks in front of the trunk: inputs, outputs and gradients of each.
    total : Buffer
        f32 (1 or 2, W), statistics (abi/loss.h): row 0 of the rows drawn, there behind per_priority.
    """

    runtime: Runtime
    plan: StepPlan
    config: Config
    layout: NetworkLayout
    shape: LossShape
    batch: Batch
    drawn: Batch
    all_rows: Batch
    ret: Buffer
    shaped_ret: Buffer
    replay: Replay
    step: Buffer
    state: Buffer
    settings: Control
    control: Buffer
    guard: Buffer
    forward: ForwardBuffers
    depth: Buffer | None
    ddqn: DdqnBuffers
    adam: AdamBuffers
    grad: AdamGradBuffers
    total: Buffer
    groups: Groups
    blocks: BlockChain
    products: NetworkProducts
    chooses: Buffer | None = None
    metrics: dict[str, Buffer] = field(default_factory=dict)
    metric_rows: dict[str, Buffer] = field(default_factory=dict)
    trunk_gradients: dict[str, Buffer] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    def child(self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer], private: Iterable[Buffer] = (),
              when: Flag | None = None, scratch: Iterable[Buffer] = (), *, before: str | None = None,
              after: str | None = None) -> Child:  # fmt: skip
        """A child of the step at a place in its order: see `StepPlan.child`.

        The learner's own, in order: counters, per_sample, forward, ddqn, adam_grad, adam, per_priority, and those of the
        features that are on. Gradients go between ddqn and adam_grad. ``"aux.mine"`` is shown as a part of ``aux``.
        """
        return self.plan.child(name, reads, writes, private, when, scratch, before=before, after=after)

    def side_products(self, lane: str = "main") -> SideProducts:
        """Products of an extension's own, by cuBLASLt or by the package's kernel. Lane ``"main"`` is that of forward and
        adam_grad: a child that runs beside one of them takes another."""
        assert self.products.gemm is not None
        return SideProducts(self.products.gemm, self.products.precision, lane)

    def block_forward(self, block: str, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> Child:
        """The child ``forward.<block>``, in front of ``forward``: a block's three passes, from ``blocks.inputs[block]`` to
        ``blocks.work[block]``."""
        return self.child(f"forward.{block}", reads, writes, before="forward")

    def block_backward(self, block: str, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> Child:
        """The child ``adam_grad.<block>``: from ``blocks.gradient[block]`` to the group's gradient, and to
        ``blocks.before[block]`` where another block stands in front. Blocks go back in reverse order. ``scratch``: workspaces of
        its products."""
        names = [b.name for b in self.layout.blocks]
        at = names.index(block)
        if at == 0:
            return self.child(f"adam_grad.{block}", reads, writes, after="adam_grad")
        return self.child(f"adam_grad.{block}", reads, writes, before=f"adam_grad.{names[at - 1]}")

    @property
    def dlogits(self) -> Buffer:
        """f32 (M, Np): gradient of the loss by the raw value and advantage logits of s. ddqn writes it; a child after ddqn
        adds to it, declaring it as written."""
        assert self.ddqn.dlogits is not None
        return self.ddqn.dlogits

    def appended(self, extension: str) -> Batch:
        """The rows that an extension appends to the batch."""
        begin, stop = self._rows_of(extension)
        return self.all_rows.rows(begin, stop)

    def _rows_of(self, extension: str) -> tuple[int, int]:
        if extension not in self.rows:
            raise ExtensionError(f"extension {extension} announced no rows: set appends on it")
        return self.rows[extension]

    def appended_trunk_output(self, extension: str) -> Buffer:
        """f32 (rows, Hp): `trunk_output` of the rows that an extension appends."""
        begin, stop = self._rows_of(extension)
        view: Buffer = self._trunk_output(ONLINE)[begin:stop]
        return view

    @property
    def trunk_output(self) -> Buffer:
        """f32 (M, Hp): the trunk's output on s, after its ReLU.

        Raises
        ------
        ExtensionError
            With network.precision bf16, where it is kept in bf16.
        """
        return self._of_losses(self._trunk_output(ONLINE))

    @property
    def trunk_output_next(self) -> Buffer:
        """f32 (M, Hp): the same on s', by the online network. Raises as `trunk_output`."""
        return self._of_losses(self._trunk_output(ONLINE_NEXT))

    def _of_losses(self, rows: Any) -> Buffer:
        found: Buffer = rows if rows.shape[0] == self.batch.size else rows[: self.batch.size]
        return found

    def _trunk_output(self, which: int) -> Any:
        hidden = self.forward.hidden[-1]
        if hidden.dtype != np.dtype(np.float32):
            raise ExtensionError(
                "the trunk's output is kept in bf16, and extensions read it in f32: set network.precision=tf32"
            )
        return hidden[which : which + 1].view(hidden.shape[1:])

    @property
    def next_values(self) -> Buffer:
        """f32 (M, S): what ddqn adds to the online network's expected returns at s' before it chooses a*: those of other heads,
        so that a* is that of their sum; or, where a* is chosen already, as by the ensemble, 0 for it and -infinity for the
        rest. Every element is to be written every step, before ddqn."""
        if self.chooses is None:
            raise ExtensionError("no extension announced a say in a*: set next_values = True on it")
        return self.chooses

    def trunk_gradient(self, extension: str) -> Buffer:
        """f32 (M, Hp): where an extension writes its loss's gradient by `trunk_output`; adam_grad adds it to that of the heads.
        Every element is to be written every step, pads as zeros. For one that appends rows without a loss: f32 (rows, Hp), by
        `appended_trunk_output`."""
        if extension not in self.trunk_gradients:
            raise ExtensionError(
                f"extension {extension} announced no gradient of the trunk: set trunk_gradient = True on it"
            )
        return self.trunk_gradients[extension]

    def metric(self, name: str) -> Buffer:
        """f32 (1,): where a child writes a metric that its extension announced, every step."""
        if name not in self.metrics:
            raise ExtensionError(f"no extension announced a metric {name}: put it into the extension's metrics")
        return self.metrics[name]

    def metrics_of(self, extension: Extension) -> Buffer:
        """f32 (n,): all metrics of an extension side by side, in the order that it announced them in."""
        return self.metric_rows[extension.name]

    def group(self, name: str) -> GroupView:
        """The parameters of one group of this layout."""
        found = [g for g in self.layout.groups if g.name == name]
        if not found:
            raise LayoutError(
                f"no parameter group {name}; {choose(name, [g.name for g in self.layout.groups], 'the groups')}"
            )
        return GroupView(found[0], self.layout.group_segments[name], self.groups, self.adam, self.grad)


def check_announced(extensions: Sequence[Extension]) -> None:
    """Refuses extensions without a name, and clashes of names or metrics."""
    names = [e.name for e in extensions]
    if not all(names) or len(set(names)) != len(names):
        raise ExtensionError(f"extensions are named {names}: give each a name of its own")
    metrics = [m for e in extensions for m in e.metrics]
    if len(set(metrics)) != len(metrics):
        raise ExtensionError(f"extensions announce the metrics {', '.join(metrics)}: give each a name of its own")
    if len(choosing := [e.name for e in extensions if e.next_values]) > 1:
        raise ExtensionError(f"{', '.join(choosing)} all have a say in a*: next_values is for one extension")


def place_rows(extensions: Sequence[Extension], drawn: int) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Where the rows that extensions append stand, behind ``drawn`` rows: first those that have a loss. Also M and R, how many
    rows have a loss and how many there are."""
    placed, at, with_loss = dict[str, tuple[int, int]](), drawn, drawn
    for in_loss in (True, False):
        for extension in extensions:
            if extension.appends and extension.in_loss == in_loss:
                placed[extension.name] = (at, at + extension.appends)
                at += extension.appends
        with_loss = at if in_loss else with_loss
    return placed, with_loss, at


def check_recorded(extensions: Sequence[Extension], step: StepView) -> None:
    """Refuses a step in which something announced is never written: it would be zero for ever (known failure K6)."""
    written = [r for child in step.plan.children for r in child.written_ranges()]

    def covered(buffer: Buffer) -> bool:
        """Whether writes reach every byte of a buffer."""
        at, end = buffer.ptr, buffer.ptr + buffer.nbytes
        for ptr, nbytes in sorted(written):
            if ptr <= at < ptr + nbytes:
                at = ptr + nbytes
        return at >= end

    for extension in extensions:
        for name in extension.metrics:
            if not covered(step.metrics[name]):
                raise ExtensionError(f"extension {extension.name}: no child writes the metric {name}")
        if extension.trunk_gradient and not covered(step.trunk_gradients[extension.name]):
            raise ExtensionError(f"extension {extension.name}: no child writes its gradient of the trunk")
        if extension.appends and not all(covered(b) for b in step.appended(extension.name).sampled):
            raise ExtensionError(f"extension {extension.name}: no child writes the whole of the rows that it appends")
        if extension.next_values and not covered(step.next_values):
            raise ExtensionError(
                f"extension {extension.name}: no child writes its share in the choice of a*, next_values"
            )
    for group in step.layout.groups:
        grad, squares = step.group(group.name).gradient
        if not covered(squares):
            raise ExtensionError(f"parameter group {group.name}: no child squares its gradient: call "
                                 "step.group(name).record_squares(child)")  # fmt: skip
        if not covered(grad):
            raise ExtensionError(f"parameter group {group.name}: no child writes the whole of its gradient")


__all__ = ["Extension", "ExtensionError", "GroupView", "StepView", "check_announced", "check_recorded", "place_rows"]
