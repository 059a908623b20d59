"""Agent.save and Agent.load: resuming is bit for bit, across processes and kill -9; whatever does not fit is refused whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.dqn import Agent, CheckpointError
from foxhunt_rt.dqn.checkpoint import load_checkpoint, save_checkpoint
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import ReplayError

from .agent_harness import CONFIG, ENVIRONMENTS, STATE, World, fill

BRANCHES = [3, 2]


@pytest.fixture
def agent(runtime: Runtime) -> Iterator[Agent]:
    with Agent(STATE, BRANCHES, CONFIG, runtime, environments=ENVIRONMENTS) as made:
        yield made


def advance(agent: Agent, world: World, steps: int) -> list[float]:
    """So many steps with an insert each; the losses."""
    losses = []
    for _ in range(steps):
        fill(agent, world, 1)
        agent.step()
        metrics = agent.drain()
        assert metrics is not None
        losses.append(metrics.loss)
    return losses


def everything(agent: Agent) -> dict[str, bytes]:
    """Whatever a later step or action could depend on."""
    agent.drain()
    replay, learner = agent.replay, agent.learner
    buffers = {**learner.persistent(), "draws": agent.policy.draws, "control": learner.control.buffer, "guard": learner.guard,
               "priority": replay.priority, "sums": replay.block_sum, "ring": replay.ring}  # fmt: skip
    held = {"rows": replay.rows, "state": replay.state, "owner": replay.final_owner, "final": replay.final_state}
    counts = replay.read_state()
    limits = {"rows": counts.size, "state": counts.size, "owner": counts.finals, "final": counts.finals}
    found = {name: buffer.to_numpy().tobytes() for name, buffer in buffers.items()}
    found |= {name: buffer.to_numpy()[: limits[name]].tobytes() for name, buffer in held.items()}  # type: ignore[union-attr]
    return found | {"epsilon": repr(agent.epsilon).encode(), "steps": repr(agent.steps).encode()}


def test_no_other_buffer_carries_anything_from_step_to_step(agent: Agent) -> None:
    """The oracle of what a checkpoint must hold: with all else poisoned between steps, training is the same, bit for bit."""
    fill(agent, World())
    learner = agent.learner
    kept = {buffer.ptr for buffer in learner.persistent().values()}
    kept |= {
        b.ptr for b in (*agent.replay.sample_reads, agent.replay.final_owner, learner.guard, learner.records.ring) if b
    }
    scratch = [b for b in learner.state_buffers() if b.ptr not in kept]
    assert len(scratch) > 5
    start = {b.ptr: b.to_numpy() for b in learner.state_buffers()}

    def run(poison: bool) -> list[bytes]:
        seen = []
        for _ in range(4):
            if poison:
                for buffer in scratch:
                    array = buffer.to_numpy()
                    array.view(np.uint8)[...] = 0xFF  # NaN, and indices that are out of range
                    buffer.copy_from(array)
            agent.learner.graph.launch()
            seen.append(b"".join(b.to_numpy().tobytes() for b in learner.persistent().values()))
        return seen

    expected = run(False)
    for buffer in learner.state_buffers():
        buffer.copy_from(start[buffer.ptr])
    assert run(True) == expected
    assert len(set(expected)) == 4


@pytest.mark.parametrize(("inserts", "steps_per_launch"), [(0, 1), (2, 1), (20, 1), (20, 3), (150, 1)])
def test_resuming_is_bit_exact(runtime: Runtime, tmp_path: Path, inserts: int, steps_per_launch: int) -> None:
    """150 inserts: the ring has come round."""
    path = tmp_path / "agent.safetensors"
    config = CONFIG.merged({"train": {"steps_per_launch": steps_per_launch}})

    def begin() -> tuple[Agent, World]:
        agent, world = Agent(STATE, BRANCHES, config, runtime, environments=ENVIRONMENTS), World(7)
        fill(agent, world, inserts)
        if agent.ready:
            agent.learner.set(lr=2e-4)  # what was changed by hand goes on too
            advance(agent, world, 8)  # beyond the first epoch of 5
        return agent, world

    agent, world = begin()
    agent.save(path)
    agent.close()
    loaded = Agent.from_checkpoint(path, runtime)
    straight, other = begin()
    assert everything(loaded) == everything(straight)
    assert loaded.config == straight.config and loaded.learner.config == straight.learner.config
    fill(loaded, world, 20), fill(straight, other, 20)
    assert advance(loaded, world, 8) == advance(straight, other, 8)
    assert everything(loaded) == everything(straight)
    # a reset is that of the agent which was saved
    for each in (loaded, straight):
        each.learner.reset(3)
    assert loaded.learner.control.config == straight.learner.control.config
    loaded.close(), straight.close()


def test_loading_forgets_all_that_was(agent: Agent, runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "agent.safetensors"
    world = World(1)
    fill(agent, world)
    advance(agent, world, 2)
    agent.save(path)
    before = everything(agent)
    fill(agent, world, 60)
    advance(agent, world, 9)
    agent.act(world.state, epsilon=0.3, temperature=2.0)
    agent.load(path)
    assert everything(agent) == before


def test_without_the_replay_the_rest_comes_back(agent: Agent, tmp_path: Path) -> None:
    world, small, large = World(1), tmp_path / "small", tmp_path / "large"
    fill(agent, world)
    advance(agent, world, 2)
    agent.save(small, replay=False), agent.save(large)
    assert small.stat().st_size < large.stat().st_size
    states = world.state
    before = agent.values(states)
    advance(agent, world, 3)
    agent.load(small)
    np.testing.assert_array_equal(agent.values(states), before)
    assert agent.steps == 2 and agent.replay.size == 0 and not agent.ready
    with pytest.raises(ReplayError, match="too few"):
        agent.step()
    fill(agent, World(5))  # any state may come first
    agent.step()


def test_what_does_not_fit_is_refused_and_changes_nothing(agent: Agent, runtime: Runtime, tmp_path: Path) -> None:
    fill(agent, World())
    agent.step()
    before = everything(agent)
    good = tmp_path / "good.safetensors"
    agent.save(good)

    def refused(path: Path, words: str) -> None:
        with pytest.raises(CheckpointError, match=words) as caught:
            agent.load(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
        assert everything(agent) == before

    data, path = good.read_bytes(), tmp_path / "bad.safetensors"
    for keep in (0, 7, 300, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        refused(path, "damaged")
    refused(tmp_path / "none", "does not exist")
    refused(tmp_path, "cannot be read")
    tensors, facts, _ = load_checkpoint(good)
    save_checkpoint(path, tensors, {**facts, "kind": "fold"}, CONFIG)
    refused(path, "no checkpoint of an agent")
    for name in tensors:
        if name != "expected":  # absent before the first transition
            save_checkpoint(path, {k: v for k, v in tensors.items() if k != name}, facts, CONFIG)
            refused(path, f"{name.removeprefix('replay.')} is missing")
        save_checkpoint(path, {**tensors, name: tensors[name][..., :-1]}, facts, CONFIG)
        refused(path, name.removeprefix("replay."))
    for name in facts:
        if name not in ("kind", "choices"):  # choices tell how the products were made: to pin to, not needed to go on
            save_checkpoint(path, tensors, {k: v for k, v in facts.items() if k != name}, CONFIG)
            refused(path, name)
            if name in ("sizes", "config", "environments"):
                with pytest.raises(CheckpointError, match=name):
                    Agent.from_checkpoint(path, runtime)
    save_checkpoint(path, tensors, {**facts, "config": {**facts["config"], "later": {}}}, CONFIG)
    refused(path, "not one of this version.*later")

    for change, words in (
        ({"network": {"hidden": [8]}}, r"network.hidden is \[8\] in it, \[16\] here"),
        ({"network": {"atoms": 21}}, "network.atoms"),
        ({"replay": {"batch": 32}}, "replay.batch"),
        ({"replay": {"n_step": 3}}, "n_step"),
        ({"replay": {"capacity": 301}}, "capacity"),
        ({"loss": {"grad_budget": 0.0}}, "grad_budget"),
        ({"loss": {"branch_reduction": "sum"}}, "branch_reduction"),
    ):  # fmt: skip
        with Agent(STATE, BRANCHES, CONFIG.merged(change), runtime, environments=ENVIRONMENTS) as other:
            other.save(path)
        refused(path, words)
    for state, branches, environments, words in (
        (STATE + 1, BRANCHES, ENVIRONMENTS, "state_dim"),
        (STATE, [2, 3], ENVIRONMENTS, "branches"),
        (STATE, BRANCHES, ENVIRONMENTS + 1, "environments"),
    ):
        with Agent(state, branches, CONFIG, runtime, environments=environments) as other:
            other.save(path)
        refused(path, words)
    agent.load(good)
    assert everything(agent) == before


def test_damage_anywhere_in_the_file_is_found(agent: Agent, tmp_path: Path) -> None:
    fill(agent, World(), 3)
    path = tmp_path / "agent.safetensors"
    agent.save(path)
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    random = np.random.default_rng(0)
    for at in [*random.integers(0, 8 + header, 60), *random.integers(8 + header, len(data), 60)]:
        changed = bytearray(data)
        changed[at] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            agent.load(path)


def test_an_interrupted_load_leaves_a_new_agent(agent: Agent, runtime: Runtime, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    path, world = tmp_path / "agent.safetensors", World(1)
    with Agent(STATE, BRANCHES, CONFIG, runtime, environments=ENVIRONMENTS) as new:
        fresh = new.learner.params()
    fill(agent, world)
    advance(agent, world, 3)
    agent.save(path)
    from foxhunt_rt.dqn import learner_state

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learner_state.saved, "write_contents", interrupt)
        with pytest.raises(KeyboardInterrupt):
            agent.load(path)
    assert agent.steps == 0 and agent.replay.read_state().inserted == 0 and not agent.policy.draws.to_numpy().any()
    for name, array in agent.learner.params().items():
        np.testing.assert_array_equal(array, fresh[name])
    agent.load(path)
    assert agent.steps == 3


def test_a_state_with_a_fault_is_not_saved(agent: Agent, tmp_path: Path) -> None:
    fill(agent, World())
    theta = agent.learner.adam.theta.to_numpy()  # type: ignore[attr-defined]
    agent.learner.adam.theta.copy_from(np.full_like(theta, np.nan))  # type: ignore[attr-defined]
    with pytest.raises(GuardFault):  # noqa: PT012 (the one or the other, by when it runs)
        agent.step()
        agent.drain()
    with pytest.raises(GuardFault):  # also when the fault was told before
        agent.save(tmp_path / "agent")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_file(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "agent.safetensors"
    agent.save(path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="cannot be written"):
        agent.save(tmp_path / "no such folder" / "agent")
    with pytest.raises(CheckpointError, match="cannot be written"):
        agent.save(tmp_path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_missing_extra_is_named(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foxhunt_rt._optional import MissingExtra

    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (agent.save, agent.load, Agent.from_checkpoint):
        with pytest.raises(
            MissingExtra, match=r"safetensors, which is not installed: pip install 'foxhunt-rt\[train\]'"
        ):
            call(tmp_path / "agent")


PROCESS = """
import hashlib, os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from agent_harness import CONFIG, ENVIRONMENTS, STATE, World, fill
from foxhunt_rt.dqn import Agent

path, resume, until, save_at = Path(sys.argv[1]), sys.argv[2] == "resume", int(sys.argv[3]), int(sys.argv[4])
agent = Agent.from_checkpoint(path) if resume else Agent(STATE, [3, 2], CONFIG, environments=ENVIRONMENTS)
world = World(11)
done = 0
def go():  # one insert and, once there is enough, one step; a resumed run replays the world up to where it was
    global done
    fill(agent, world, 1)
    if agent.ready:
        agent.step()
    done += 1
if resume:
    done = agent.replay.inserted // ENVIRONMENTS
    class Still:  # the same draws of the world, without an agent
        pass
    for _ in range(done):
        world.transition([0] * ENVIRONMENTS)
while done < until:
    go()
    if save_at and done % save_at == 0:
        agent.save(path)
        print("saved", done, flush=True)
agent.drain()
digest = hashlib.sha256(agent.learner.adam.theta.to_numpy().tobytes() + agent.replay.priority.to_numpy().tobytes()
                        + agent.replay.rows.to_numpy().tobytes() + agent.policy.draws.to_numpy().tobytes())
print("digest", agent.steps, digest.hexdigest(), flush=True)
"""


def start(path: Path, resume: bool, until: int, save_at: int) -> subprocess.Popen[str]:
    program = PROCESS.format(tests=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", program, str(path), "resume" if resume else "new", str(until), str(save_at)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.mark.hostsim
def test_a_new_process_goes_on_after_kill_9(tmp_path: Path) -> None:
    """2N steps are N, a checkpoint, kill -9 amid further steps and saves, a new process, and the rest."""
    path = tmp_path / "agent.safetensors"
    whole = start(tmp_path / "unused", False, 60, 0)
    killed = start(path, False, 10_000, 5)
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.split()[1] == "30":
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    _, facts, _ = load_checkpoint(path)  # whole, whenever it was killed
    saved = facts["replay"]["counts"]["inserted"] // ENVIRONMENTS
    assert saved >= 30 and saved % 5 == 0
    until = max(60, saved + 30)
    if until > 60:  # it got on further than meant before the signal came
        whole.communicate()
        whole = start(tmp_path / "unused", False, until, 0)
    resumed = start(path, True, until, 0)
    outputs = [process.communicate(timeout=60) for process in (whole, resumed)]
    assert outputs[0][0].split()[-3:] == outputs[1][0].split()[-3:], outputs
    assert outputs[0][0].startswith("digest") and json.loads(outputs[0][0].split()[1]) > 20
