"""Transitions from Gymnasium's vector environments in each autoreset mode, and arrays of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.dqn import Agent
from foxhunt_rt.graph import Runtime
from foxhunt_rt.interop import ForeignMemoryError
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import ReplayError

from .agent_harness import CONFIG, ENVIRONMENTS, STATE, World

COUNT, LIMIT = 3, 12  # an episode of CartPole that leans all the way ends by itself after 8 to 10 steps
TERMINATED, TRUNCATED, ABSENT = (abi.constant(f"ENDED_{n}") for n in ("TERMINATED", "TRUNCATED", "ABSENT"))


def policy(states: Any) -> Any:
    """Depends on the state alone, so that every mode walks the same episodes: some fall, some reach the limit."""
    return np.where(np.arange(COUNT) == 0, 1, (states[:, 2] > 0).astype(int))


def make(mode: str) -> Any:
    gym = pytest.importorskip("gymnasium")
    return gym.make_vec("CartPole-v1", COUNT, vectorization_mode="sync", max_episode_steps=LIMIT,
                        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode[mode]})  # fmt: skip


def run_same_step(agent: Agent, steps: int) -> None:
    envs = make("SAME_STEP")
    states, _ = envs.reset(seed=5)
    for _ in range(steps):
        actions = policy(states)
        following, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        last = following.copy()
        if ended.any():
            last[ended] = np.stack(infos["final_obs"][ended])
        agent.observe(states, actions, rewards, last, terminated, truncated)
        states = following


def run_next_step(agent: Agent, steps: int) -> None:
    envs = make("NEXT_STEP")
    states, _ = envs.reset(seed=5)
    resetting = np.zeros(COUNT, bool)
    for _ in range(steps):
        actions = policy(states)
        following, rewards, terminated, truncated, _ = envs.step(actions)
        agent.observe(states, actions, rewards, following, terminated, truncated, absent=resetting)
        resetting = terminated | truncated
        states = following


def run_disabled(agent: Agent, steps: int) -> None:
    envs = make("DISABLED")
    states, _ = envs.reset(seed=5)
    for _ in range(steps):
        actions = policy(states)
        following, rewards, terminated, truncated, _ = envs.step(actions)
        agent.observe(states, actions, rewards, following, terminated, truncated)
        ended = terminated | truncated
        if ended.any():
            following, _ = envs.reset(options={"reset_mask": ended})
        states = following


def stored(agent: Agent) -> list[list[tuple[Any, ...]]]:
    """The transitions in the ring that are complete, by environment: s, action, reward, s', ended."""
    replay: Any = agent.replay
    rows, states, finals = replay.rows.to_numpy(), replay.state.to_numpy(), replay.final_state.to_numpy()
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(COUNT)]
    for i in range(replay.inserted):
        row = rows[i]
        if row["ended"] == ABSENT or (not row["ended"] and i + COUNT >= replay.inserted):
            continue
        following = finals[row["final_slot"]] if row["ended"] else states[i + COUNT]
        found[i % COUNT].append((*states[i], int(row["action"]), float(row["reward"]), *following, int(row["ended"])))
    return found


def direct(steps: int) -> list[list[tuple[Any, ...]]]:
    """The oracle: single environments, reset by hand."""
    gym = pytest.importorskip("gymnasium")
    found = []
    for e in range(COUNT):
        env = gym.make("CartPole-v1", max_episode_steps=LIMIT)
        state, _ = env.reset(seed=5 + e)
        walked = []
        for _ in range(steps):
            action = int(policy(np.tile(state, (COUNT, 1)))[e])
            following, reward, terminated, truncated, _ = env.step(action)
            ended = TERMINATED * terminated | TRUNCATED * truncated
            walked.append((*state, action, float(reward), *following, ended))
            state = env.reset()[0] if ended else following
        found.append(walked)
    return found


@pytest.mark.parametrize("run", [run_same_step, run_next_step, run_disabled])
def test_every_autoreset_mode_stores_the_true_transitions(runtime: Runtime, run: Any) -> None:
    steps = 60
    expected = direct(steps)
    ends = [t[-1] for walk in expected for t in walk]
    assert ends.count(TERMINATED) > 5 and ends.count(TRUNCATED) > 5
    config = CONFIG.merged({"replay": {"capacity": 1024}})
    with Agent(4, [2], config, runtime, environments=COUNT) as agent:
        run(agent, steps)
        found = stored(agent)
        # the priorities say the same: what is complete can be drawn, nothing else (of windows of n steps, the last n wait)
        drawable = (agent.replay.priority.to_numpy()[: agent.replay.inserted] > 0).sum()
        assert drawable <= sum(map(len, found)) <= drawable + COUNT * config.replay.n_step
    for e in range(COUNT):
        assert len(found[e]) > steps - 10
        assert found[e] == expected[e][: len(found[e])]


def test_an_absent_environment_ends_its_episode(runtime: Runtime) -> None:
    with Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as agent:
        world = World()
        for t in range(8):
            transition = {**world.transition([0, 1, 2]), "terminated": [False] * 3, "truncated": [False] * 3}
            agent.observe(**transition, absent=np.array([False, t == 4, False]))
            world.state = transition["next_states"] if t != 4 else np.where(
                np.array([[False], [True], [False]]), 0.5, transition["next_states"]).astype(np.float32)  # fmt: skip
        drawable = agent.replay.priority.to_numpy()[:24].reshape(8, 3) > 0
        n = CONFIG.replay.n_step
        assert drawable[:, 0].tolist() == [t < 8 - n for t in range(8)]
        assert drawable[:, 1].tolist() == [t < 4 - n or 4 < t < 8 - n for t in range(8)]
        with pytest.raises(ReplayError, match=r"absent is int64\[3\]; give bool"):
            agent.observe(**world.transition([0, 1, 2]), absent=[0, 0, 1])


# ---------------------------------------------------------------- arrays of other libraries


class OnlyDlpack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.fixture
def agents(runtime: Runtime) -> Iterator[tuple[Agent, Agent]]:
    with (Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as a,
          Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as b):  # fmt: skip
        yield a, b


def numpy_transitions(count: int) -> list[dict[str, Any]]:
    world = World(2)
    found = []
    for _ in range(count):
        transition = world.transition(np.array([0, 4, 5], np.int32))
        found.append({**transition, "rewards": transition["rewards"].astype(np.float32)})
    return found


def converters(library: str, runtime: Runtime) -> Any:
    if library == "buffers":
        return lambda a: runtime.array(a.astype(np.uint8) if a.dtype == bool else a, "given").view(a.shape, a.dtype)
    if library == "dlpack":
        return OnlyDlpack
    if library == "lists":
        return lambda a: a.tolist()
    module = pytest.importorskip({"torch": "torch", "jax": "jax.numpy"}[library])
    return module.from_numpy if library == "torch" else module.asarray


@pytest.mark.parametrize("library", ["lists", "dlpack", "torch", "jax", "buffers"])
def test_any_array_is_observed_and_acted_on(agents: tuple[Agent, Agent], library: str) -> None:
    plain, other = agents
    convert = converters(library, plain.runtime)
    for transition in numpy_transitions(6):
        plain.observe(**transition)
        other.observe(**{name: convert(array) for name, array in transition.items()})
        np.testing.assert_array_equal(
            other.act(convert(transition["next_states"])), plain.act(transition["next_states"])
        )
    for name in ("rows", "state", "final_state", "priority"):
        np.testing.assert_array_equal(getattr(other.replay, name).to_numpy(), getattr(plain.replay, name).to_numpy())


@pytest.mark.gpu
def test_device_tensors_are_observed_and_acted_on(agents: tuple[Agent, Agent]) -> None:
    torch = pytest.importorskip("torch")
    plain, other = agents
    for transition in numpy_transitions(6):
        plain.observe(**transition)
        other.observe(**{name: torch.from_numpy(array).cuda() for name, array in transition.items()})
        expected = plain.act(transition["next_states"])
        np.testing.assert_array_equal(other.act(torch.from_numpy(transition["next_states"]).cuda()), expected)
    np.testing.assert_array_equal(other.replay.state.to_numpy(), plain.replay.state.to_numpy())  # type: ignore[union-attr]


def test_an_array_that_cannot_be_read_is_refused(agents: tuple[Agent, Agent]) -> None:
    agent = agents[0]
    transition = numpy_transitions(1)[0]

    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert")

    for name in transition:
        with pytest.raises(ForeignMemoryError, match=f"{name}: can't convert: give"):
            agent.observe(**{**transition, name: Broken()})
    ragged = [[0.0] * STATE, [0.0], [0.0]]
    with pytest.raises(ForeignMemoryError, match="states: "):
        agent.observe(**{**transition, "states": ragged})
    with pytest.raises(ReplayError, match="states are"):
        agent.observe(**{**transition, "states": np.full((ENVIRONMENTS, STATE), "x")})
    assert agent.replay.read_state().inserted == 0
