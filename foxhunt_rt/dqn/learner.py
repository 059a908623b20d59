"""The learner: buffers, the plan of one training step, and the loop's side of it. A step, or K of them, is one `cuGraphLaunch`.

The children and their order are `_record_step`; docs/step/ has a page for each.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.blocks import BlockChain
from foxhunt_rt.dqn.children import adam, adam_grad, counters, ddqn, forward, per_priority, per_sample, publish
from foxhunt_rt.dqn.children.isv import context_dim
from foxhunt_rt.dqn.children.popart import PopArt
from foxhunt_rt.dqn.choose import choose, table_of
from foxhunt_rt.dqn.extension import Extension, StepView, check_announced, check_recorded, place_rows
from foxhunt_rt.dqn.features import CHILDREN, features
from foxhunt_rt.dqn.groups import Groups
from foxhunt_rt.dqn.guard import CLEAR, GuardFault, decode
from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.dqn.records import RecordError, RecordReader
from foxhunt_rt.dqn.schedule import Control
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Flag, Runtime, StepGraph, StepPlan, StepTimer
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch, Replay


class Learner:
    """A distributional double DQN whose whole training step is one graph launch.

    In a capture: refused. Synchronizes: yes. Allocates: yes.

    Parameters
    ----------
    rt : Runtime
    config : Config
        Sizes are read once; what `set` names may change later.
    state_dim : int
        Floats of an observation. S is as many, and with isv on six more, which the replay appends.
    branches : sequence of int
        Actions of each branch of the factored action.
    replay : Replay, optional
        Drawn from. Default: a ring in vector mode, made from the configuration.
    keep_target : bool
        Keep the projected target distributions of the last step, for reports and tests.
    extensions : sequence of Extension
        What is added to the step: children, parameters, losses (docs/extending.md).

    Attributes
    ----------
    layout : NetworkLayout
    products : NetworkProducts
        Who makes which product, measured or from a table (docs/gemm.md).
    shape : ddqn.LossShape
    replay : Replay
    rows : Batch
        R rows that the network runs on: B drawn, then those that extensions append, with a loss and without.
    batch : Batch
        The first M of them, which have a loss.
    drawn : Batch
        The first B of them, which were drawn from the replay.
    ret : Buffer
        f32 (M,), n-step returns in units of the support: ``batch.ret``, or with popart on a buffer beside it.
    shaped_ret : Buffer
        f32 (M,), what ddqn takes for them: ``ret``, or with horizons on a buffer beside it.
    forward, ddqn, grad, adam
        The buffers of those children.
    blocks : BlockChain
        The blocks in front of the trunk; with none the trunk takes the states of the batch.
    graph : StepGraph
        The built step.
    timer : StepTimer
        Host and device time of each step; logs to ``foxhunt_rt.step``.
    steps_per_launch : int
        K: steps that one launch runs at most.
    launched : int
        Steps launched since the last reset.

    Raises
    ------
    ConfigError, LayoutError, BranchError, ReplayError
        Sizes that do not fit together.
    """

    def __init__(self, rt: Runtime, config: Config, state_dim: int, branches: Sequence[int], *,
                 replay: Replay | None = None, keep_target: bool = False,
                 extensions: Sequence[Extension] = ()) -> None:  # fmt: skip
        self.runtime = rt
        n, drawn = config.network.atoms, config.replay.batch
        extensions = (*features(config), *extensions)
        check_announced(extensions)
        self.extensions: tuple[Extension, ...] = ()  # none to reset yet
        context = context_dim(config)
        state_dim += context
        self.layout = NetworkLayout(
            state_dim, config.network.hidden, tuple(branches), n, residual=config.network.residual
        )
        self.layout = dataclasses.replace(
            self.layout, groups=tuple(g for e in extensions for g in e.parameters(self.layout)),
            blocks=tuple(block for e in extensions if (block := e.block(config)) is not None),
        )  # fmt: skip
        placed, b, r = place_rows(extensions, drawn)
        self.shape = ddqn.LossShape(b, tuple(branches), n, config.loss.branch_reduction, drawn if drawn < b else 0)
        self.replay = replay or Replay(
            rt, config.replay.capacity, state_dim, context_dim=context, n_step=config.replay.n_step
        )
        if (self.replay.state_dim, self.replay.context_dim) != (state_dim, context):
            raise ConfigError(
                f"the replay holds states of {self.replay.state_dim} floats, {self.replay.context_dim} of them context, "
                f"the learner takes {state_dim} with {context}; make both with one state_dim"
            )
        self.control = Control(rt, config, seed=config.train.seed)
        self.state = rt.zeros(1, abi.dtype("train_state"), "train_state")
        self.step_block = rt.zeros(1, abi.dtype("step_block"), "step")
        self.guard = rt.zeros(1, abi.dtype("guard_block"), "guard")
        self.alarms = rt.zeros(1, abi.dtype("alarm_block"), "alarms")
        self.rows = Batch.allocate(rt, r, state_dim, self.layout.window)
        self.batch, self.drawn = self.rows.rows(0, b), self.rows.rows(0, drawn)
        self.ret: Buffer = rt.zeros(b, np.float32, "popart.ret") if config.popart.enabled else self.batch.ret
        shaping = config.horizons.enabled and config.horizons.bound > 0.0
        self.shaped_ret: Buffer = rt.zeros(self.batch.size, np.float32, "horizons.ret") if shaping else self.ret
        self.products = choose(rt, self.layout, r, config.network.precision, table_of(config.network.choices))
        self.forward = forward.ForwardBuffers.create(rt, self.layout, r, self.products)
        self.depth = (
            rt.zeros((self.layout.residual_blocks, r), np.float32, "depth.scale") if config.depth.enabled else None
        )
        self.ddqn = ddqn.DdqnBuffers.create(rt, self.shape, self.batch.td_error, budget=config.loss.grad_budget > 0,
                                            keep_target=keep_target, all_rows=r)  # fmt: skip
        self.total = rt.zeros((1 if drawn == b else 2, self.shape.stats_width), np.float32, "statistics")
        self.grad = adam_grad.AdamGradBuffers.create(rt, self.layout, r, self.products)
        self.blocks = BlockChain.create(rt, self.layout, (self.rows.state, self.rows.next_state), self.rows.windows,
                                        self.grad.dinput)  # fmt: skip
        self.adam = adam.AdamBuffers.create(rt, self.layout)
        self.groups = Groups(self.layout, self.grad.network_parts)
        self._group_table = self.groups.table(rt)
        metrics = [m for e in extensions for m in e.metrics]
        self.metrics = rt.zeros(len(metrics), np.float32, "metrics.step") if metrics else None
        through_trunk = [e.name for e in extensions if e.trunk_gradient]
        self._trunk_more = (rt.zeros((len(through_trunk), r, self.layout.layers[-1].k_padded), np.float32, "trunk_gradients")
                            if through_trunk else None)  # fmt: skip
        self._next_values = (rt.zeros((self.shape.batch, self.shape.actions), np.float32, "next_values")
                             if any(e.next_values for e in extensions) else None)  # fmt: skip
        self.steps_per_launch = config.train.steps_per_launch
        self.ahead = config.guard.launches_ahead * self.steps_per_launch  # in steps
        self.records = RecordReader(rt, max(64, 4 * self.ahead), metrics)
        self.timer = StepTimer()
        self._fault: GuardFault | None = None
        self.launched = 0
        self._newest: bytes | None = None
        self._undrained: list[bytes] = []
        self.reset(config.train.seed, clear_replay=replay is None)
        plan = rt.plan("step")
        plan.outline = CHILDREN
        self._record_step(plan, extensions)
        view = self._view(plan, extensions, placed)
        for extension in extensions:
            extension.record(view)
        check_recorded(extensions, view)
        self.extensions = tuple(extensions)
        plan.notes["choices"] = self.choices
        self.graph: StepGraph = plan.build(steps_per_launch=self.steps_per_launch,
                                           stop=Flag(self.guard, "key", clear=CLEAR))  # fmt: skip

    def _record_step(self, plan: StepPlan, extensions: Sequence[Extension]) -> None:
        """The training step, child by child."""
        layout, batch = self.layout, self.batch
        counters.add(plan, counters.CountersInputs(self.control.buffer),
                     counters.CountersBuffers(self.state, self.step_block), layout.atoms)  # fmt: skip
        per_sample.add(plan, per_sample.PerSampleInputs(self.replay, self.step_block, self.guard), self.drawn)
        trunk = self.blocks.passes
        others = any(
            e.trunk_gradient for e in extensions
        )  # losses beside C51's wait for the trunk's output, or for a*, alone
        forward.add(plan, layout, forward.ForwardInputs(self.adam.theta, self.adam.target, trunk[0], trunk[1], trunk[2],
                                                        self.depth), self.forward, self.products, apart=others)  # fmt: skip
        assert self.ddqn.dlogits_all is not None
        ddqn.add(plan, self.shape, ddqn.DdqnInputs(self.forward.logits, batch.action, self.shaped_ret, batch.discount,
                                                   batch.priority, self.step_block, self.guard, self._next_values),
                 self.ddqn, apart=others)  # fmt: skip
        adam_grad.add(plan, layout, adam_grad.AdamGradInputs(self.forward.weights(self.adam.theta), self.ddqn.dlogits_all,
                                                             tuple(self.forward.kept(trunk[0])), self._trunk_more,
                                                             self.forward.inner, self.depth),
                      self.grad, self.products)  # fmt: skip
        adam.add(plan, layout, adam.AdamInputs(self.grad.grad, self.grad.norm_part, self.step_block, self.guard,
                                               self._group_table), self.adam)  # fmt: skip
        per_priority.add(plan, per_priority.PerPriorityInputs(self.drawn, self.step_block, self.ddqn.stats,
                                                                self.ddqn.drawn), self.replay, self.total)  # fmt: skip
        publish.add(plan, self.shape, publish.PublishInputs(self.total, self.step_block, self.adam.stats,
                                                            self.replay.ring, self.guard, self.metrics),
                    publish.PublishBuffers(self.alarms, self.records.ring, self.records.metrics_ring))  # fmt: skip

    def _view(self, plan: StepPlan, extensions: Sequence[Extension], placed: dict[str, tuple[int, int]]) -> StepView:
        """What the extensions see."""
        more, gradients = self._trunk_more, dict[str, Buffer]()
        for i, extension in enumerate(e for e in extensions if e.trunk_gradient):
            begin, stop = (0, self.batch.size) if extension.in_loss else placed[extension.name]
            assert more is not None
            gradients[extension.name] = more[i : i + 1].view(more.shape[1:])[begin:stop]
        slots, rows, at = dict[str, Buffer](), dict[str, Buffer](), 0
        for extension in extensions:
            if self.metrics is None or not extension.metrics:
                continue
            rows[extension.name] = mine = self.metrics[at : at + len(extension.metrics)]
            slots |= {name: mine[i : i + 1] for i, name in enumerate(extension.metrics)}
            at += len(extension.metrics)
        return StepView(
            runtime=self.runtime, plan=plan, config=self.config, layout=self.layout, shape=self.shape, batch=self.batch,
            drawn=self.drawn, all_rows=self.rows, rows=placed, ret=self.ret, shaped_ret=self.shaped_ret, replay=self.replay,
            step=self.step_block, state=self.state, settings=self.control, control=self.control.buffer, guard=self.guard,
            forward=self.forward, depth=self.depth, ddqn=self.ddqn, adam=self.adam, grad=self.grad, total=self.total,
            groups=self.groups, blocks=self.blocks, products=self.products, chooses=self._next_values, metrics=slots,
            metric_rows=rows, trunk_gradients=gradients,
        )  # fmt: skip

    @property
    def choices(self) -> dict[str, Any]:
        """The measured choices of this learner's products, JSON-ready: with them another process makes the same bits."""
        assert self.products.gemm is not None
        return self.products.gemm.table.to_dict()

    @property
    def config(self) -> Config:
        """The configuration, with what `set` changed."""
        return self.control.config

    def step(self, steps: int | None = None) -> int:
        """Launches one training step, or several, and reads the records that have come. One launch.

        Runs at most ``guard.launches_ahead`` launches ahead of the device: beyond that it waits, by reading mapped memory.

        In a capture: refused. Synchronizes: no, but it waits by mapped memory when
        `launches_ahead` launches are in flight. Allocates: no.

        Parameters
        ----------
        steps : int, optional
            1 to `steps_per_launch`, which is the default. A number other than that of the launch before costs one ungraphed
            launch.

        Returns
        -------
        int
            Steps launched.

        Raises
        ------
        ReplayError
            The replay holds too few rows; nothing was launched.
        GuardFault
            A step before this one found something impossible. With several steps a launch it was the last that ran: until a
            reset this raises again, and launches nothing.
        """
        self.replay.require(self.drawn.size)
        if self._fault is not None:
            raise self._fault
        count = self.steps_per_launch if steps is None else steps
        waited = 0
        if self.launched + count - self.records.next_step > self.ahead:
            started = time.perf_counter_ns()
            self._wait(self.launched + count - 1 - self.ahead)
            waited = time.perf_counter_ns() - started
        self.timer.launch(self.graph, waited, count)
        self.launched += count
        try:
            self.records.poll(self._deliver)
        except GuardFault as fault:
            self._settle(fault)
            raise
        return count

    def _wait(self, step: int) -> None:
        """Waits for the record of a step."""
        try:
            self.records.wait(step, self._deliver)
        except GuardFault as fault:
            self._settle(fault)
            raise
        except RecordError:
            # A launch of several steps runs none when the guard has tripped before it, in acting for one.
            finding = decode(int(self.guard.to_numpy()["key"][0])) if self.steps_per_launch > 1 else None
            if finding is None:
                raise
            found = GuardFault(self.records.next_step, finding)
            self._settle(found)
            raise found from None

    def _settle(self, fault: GuardFault) -> None:
        """Launches of several steps end at a fault: counts the steps that did run. Synchronizes."""
        if self.steps_per_launch == 1:
            return
        self.runtime.synchronize()
        reading = True
        while reading:
            try:
                reading = bool(self.records.poll(self._deliver))
            except GuardFault:
                pass  # the first is what is raised
        self.launched, self._fault = self.records.next_step, fault

    def drain(self) -> npt.NDArray[Any]:
        """Waits for every step launched and returns the records since the last drain: a structured array of shape (n,) with the
        fields of `step_record` and one for each metric of an extension.

        In a capture: legal. Synchronizes: yes, by mapped memory. Allocates: no.

        Raises
        ------
        GuardFault
            A step found something impossible. `last` is its record.
        """
        self._wait_for_all()
        return self.take()

    def _wait_for_all(self) -> None:
        """Waits for the records of every step launched."""
        if self.launched > self.records.next_step:
            self._wait(self.launched - 1)

    def take(self) -> npt.NDArray[Any]:
        """The records that have come since the last `take` or `drain`, without waiting for more."""
        found, self._undrained = self._undrained, []
        return self.records.decode(found)

    def _deliver(self, record: bytes) -> None:
        self._newest = record
        self._undrained.append(record)
        self.timer.record(self._read_newest)

    def _read_newest(self) -> npt.NDArray[Any]:
        assert self._newest is not None
        record: npt.NDArray[Any] = self.records.decode([self._newest])[0]
        return record

    @property
    def last(self) -> npt.NDArray[Any] | None:
        """The newest record, a `step_record`, or None before the first."""
        return None if self._newest is None else self._read_newest()

    def set(self, **values: float) -> None:
        """Changes learning rate, discount, loss weights and the like for the steps launched from now on.

        See `Control.set`.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        if values.get("grad_budget", 0.0) > 0.0 and self.ddqn.ce_grad is None:
            raise ConfigError("the learner was built without a gradient budget, which takes one more launch; set "
                              "loss.grad_budget above 0 before making it")  # fmt: skip
        self.control.set(**values)

    def reset(self, seed: int, *, clear_replay: bool = True) -> None:
        """Puts everything back to the start of a fold: parameters, target, moments, counters, settings, guard, records,
        replay, RNG.

        A fold after a reset is bit for bit the fold that a new learner of the same configuration would run: what `set`
        changed is forgotten.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self.runtime.synchronize()
        self.control.reset(seed)
        for buffer in (self.state, self.step_block, self.alarms):
            buffer.fill(0)
        self.adam.load(self.layout.pack(self.layout.init(seed)))
        for extension in self.extensions:
            extension.reset()
        if clear_replay:
            self.replay.clear()
        self._begin(0)

    def restore(self, step: int, *, seed: int, initial: Config, config: Config, alpha_c51: float) -> None:
        """Puts settings, guard and records to where a learner stood after ``step`` steps, and empties the replay. `persistent`
        and the replay are for the caller to write (learner_state.py). ``seed``, ``config`` and ``alpha_c51`` are those in use
        then, ``initial`` is what `reset` goes back to.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self.runtime.synchronize()
        self.control.restore(seed, initial, config, alpha_c51)
        self.step_block.fill(0)
        self.replay.clear()
        self._begin(step)

    def _begin(self, step: int) -> None:
        """The next step launched is number ``step``; no fault, no record. Synchronizes."""
        self.guard.copy_from(np.array([(CLEAR,)], abi.dtype("guard_block")))
        self.runtime.synchronize()
        self.records.reset(step)
        self.timer.reset(step)
        self.launched, self._newest, self._undrained, self._fault = step, None, [], None

    def persistent(self) -> dict[str, DeviceBuffer]:
        """By name, every buffer, but the replay's, whose contents a step hands to the next: what a checkpoint must hold."""
        adam = self.adam
        found = {"theta": adam.theta, "target": adam.target, "m": adam.m, "v": adam.v, "optim_stats": adam.stats}
        of_extensions = {f"{e.name}.{name}": buffer for e in self.extensions for name, buffer in e.persistent().items()}
        return {**found, "counters": self.state, "alarms": self.alarms, **of_extensions}

    def params(self, *, target: bool = False) -> dict[str, npt.NDArray[np.float32]]:
        """Copies of the online (or target) parameters by name, unpadded.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        buffer = self.adam.target if target else self.adam.theta
        return self.layout.unpack(buffer.to_numpy())  # type: ignore[attr-defined]

    def begin_epoch(self, epoch: int) -> None:
        """What extensions do between epochs (`Extension.begin_epoch`), before the epoch of that number, from 0. With
        ``prune.enabled`` it synchronizes."""
        for extension in self.extensions:
            extension.begin_epoch(epoch, self.extensions)

    def end_epoch(self, epoch: int) -> None:
        """What extensions do after an epoch's last step (`Extension.end_epoch`), once every step is done. Those of the package
        that measure then copy to the host, which waits for the stream and is refused in a capture.

        In a capture: legal, but for what extensions do. Synchronizes: yes, by mapped memory. Allocates: no.

        Raises
        ------
        GuardFault
            A step found something impossible.
        """
        self._wait_for_all()
        for extension in self.extensions:
            extension.end_epoch(epoch, self.extensions)

    def served(self) -> DeviceBuffer:
        """Online parameters, f32 (P,), as they leave the learner: what is judged and written for use. They are those of the last
        step but for what extensions do to a copy (`Extension.serve`); good until the next call or step."""
        theta: DeviceBuffer = self.adam.theta  # type: ignore[assignment]
        for extension in self.extensions:
            theta = extension.serve(theta)
        return theta

    def return_scale(self) -> float:
        """Normalized return = raw return times this, after the steps launched: ``loss.reward_scale``; with popart on 1/sigma.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self.runtime.synchronize()
        found = [e.sigma(self.launched) for e in self.extensions if isinstance(e, PopArt)]
        return 1.0 / found[0] if found and found[0] > 0.0 else self.config.loss.reward_scale

    def load_params(self, tensors: Mapping[str, npt.ArrayLike]) -> None:
        """Online and target parameters from plain tensors, as `params` returns them; moments become zero.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self.drain()
        self.adam.load(self.layout.pack(tensors))

    def state_buffers(self) -> list[Buffer]:
        """Every buffer that a step writes."""
        return self.graph.state.buffers

    def close(self) -> None:
        """Waits for the stream and destroys the graph. Idempotent.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        self.graph.close()


__all__ = ["Learner"]
