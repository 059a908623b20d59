"""Agent.snapshot: the policy of one moment, bit for bit, for other threads, whatever the agent does meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import driver
from foxhunt_rt.dqn import Agent
from foxhunt_rt.dqn.policy import PolicyError
from foxhunt_rt.driver import LifetimeError
from foxhunt_rt.driver.memory import live_allocations
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import ReplayError

from .agent_harness import CONFIG, ENVIRONMENTS, STATE, World, fill

STATES = np.random.default_rng(4).normal(size=(10, STATE)).astype(np.float32)


@pytest.fixture
def agent(runtime: Runtime) -> Iterator[Agent]:
    with Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as made:
        fill(made, World())
        yield made


def test_acts_as_the_agent_did_at_that_moment(agent: Agent) -> None:
    for _ in range(3):
        agent.step()
    with agent.snapshot() as policy:
        assert (policy.steps, policy.epsilon, policy.branches) == (3, agent.epsilon, agent.branches)
        # twice each: the random numbers go on alike
        expected = [
            agent.act(STATES),
            agent.act(STATES),
            agent.act(STATES, temperature=3.0),
            agent.act(STATES[0], epsilon=0.0),
        ]
        values = agent.values(STATES)
        for _ in range(5):
            agent.step()
        agent.drain()
        assert (agent.values(STATES) != values).any()
        found = [
            policy.act(STATES),
            policy.act(STATES),
            policy.act(STATES, temperature=3.0),
            policy.act(STATES[0], epsilon=0.0),
        ]
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(policy.values(STATES), values)
        np.testing.assert_array_equal(policy.choices(found[0]), agent.choices(expected[0]))


def test_is_published_in_stream_order(agent: Agent) -> None:
    """The steps before it count though the host has waited for none; those queued right after it do not."""
    with Agent(STATE, [3, 2], CONFIG, agent.runtime, environments=ENVIRONMENTS) as other:
        fill(other, World())
        other.step(), other.step()
        other.drain()
        expected = other.values(STATES)
    agent.step(), agent.step()
    policy = agent.snapshot()
    agent.step()
    agent.learner.set(v_min=-3.0)  # the support is part of the policy
    np.testing.assert_array_equal(policy.values(STATES), expected)
    policy.close()


def test_shares_no_function_and_no_buffer_with_the_agent(agent: Agent) -> None:
    with agent.snapshot() as policy:
        actor = policy._actor
        assert actor is not None and actor.runtime is not agent.runtime
        ours = {b.ptr for b in actor.graph.buffers()}
        assert not ours & {b.ptr for g in (agent.actor.graph, agent.learner.graph) for b in g.buffers()}
        used = {int(f.handle) for fs in actor.graph._functions for f in fs.values()}
        assert not used & {int(f.handle) for fs in agent.actor.graph._functions for f in fs.values()}


def test_another_thread_acts_while_training_goes_on(agent: Agent) -> None:
    agent.step()
    expected_actions, expected = agent.act(STATES, epsilon=0.0), agent.values(STATES)
    policy = agent.snapshot()
    stop, wrong, rounds = threading.Event(), [], [0, 0]

    def use(me: int) -> None:
        while not stop.is_set():
            rounds[me] += 1
            if (policy.values(STATES) != expected).any() or (policy.act(STATES, epsilon=0.0) != expected_actions).any():
                wrong.append(rounds[me])

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(use, me) for me in range(2)]
        world = World(5)
        agent.replay.clear()
        agent._expected = None
        losses = []
        for i in range(60):
            fill(agent, world, 1)
            if agent.ready:
                agent.step()
                losses.append(agent.drain())
            if i % 20 == 10:  # others come and go meanwhile
                agent.snapshot().close()
        stop.set()
        for thread in threads:
            thread.result(timeout=30)
    assert not wrong and min(rounds) > 0 and len(losses) > 20
    policy.close()


def test_leaves_the_context_of_a_thread_as_it_was(agent: Agent) -> None:
    cu = driver.load()

    def current() -> int:
        return int(cu.cuCtxGetCurrent()[1] or 0)

    policy = agent.snapshot()
    seen: list[tuple[int, int]] = []

    def use() -> None:
        before = current()
        policy.act(STATES), policy.values(STATES)
        policy.close()
        seen.append((before, current()))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(0, 0)]


def test_outlives_the_agent_and_its_runtime() -> None:
    agent = Agent(STATE, [3, 2], CONFIG, environments=ENVIRONMENTS)
    expected = agent.values(STATES)
    policy = agent.snapshot()
    agent.close()
    with pytest.raises(LifetimeError):
        agent.act(STATES)
    np.testing.assert_array_equal(policy.values(STATES), expected)
    policy.close(), policy.close()
    for call in (policy.act, policy.values):
        with pytest.raises(LifetimeError, match="the snapshot is closed; take another"):
            call(STATES)


def test_refuses_what_the_agent_refuses(agent: Agent) -> None:
    theta: Any = agent.learner.adam.theta
    with agent.snapshot() as policy:
        with pytest.raises(ReplayError, match="shape"):
            policy.act(np.zeros((2, STATE + 1)))
        with pytest.raises(PolicyError, match="no probability"):
            policy.act(STATES, epsilon=1.5)
        assert policy.act(STATES).shape == (10,)  # it is whole after either
    theta.copy_from(np.full(theta.shape, np.nan, np.float32))
    with agent.snapshot() as policy:
        with pytest.raises(PolicyError, match="not finite"):
            policy.act(STATES)


def test_leaves_nothing_behind(runtime: Runtime) -> None:
    """Closed or only dropped, snapshot and agent give back all they took, and two agents do not disturb one another."""
    gc.collect()

    def taken() -> tuple[int, int]:
        gc.collect()
        return len(live_allocations()), len(runtime.modules)

    before = taken()
    for dropped in (False, True, True):
        shared = Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS)
        own = Agent(STATE, [3, 2], CONFIG, environments=ENVIRONMENTS)
        policies = [shared.snapshot(), own.snapshot()]
        np.testing.assert_array_equal(policies[0].values(STATES), policies[1].values(STATES))
        for each in (shared, own):
            fill(each, World())
            each.step()
        if not dropped:
            for made in (own, *policies, shared):
                made.close()
        del shared, own, policies, each
        if not dropped:
            del made
        assert runtime.stream.done or runtime.synchronize() is None
    after = taken()
    assert after[0] == before[0]
    # only the modules of ungraphed users, which every later agent uses too, stay in a shared runtime
    assert after[1] <= before[1] + 4


@pytest.mark.hostsim
def test_an_agent_that_cannot_be_made_leaves_nothing() -> None:
    sim = driver.hostsim()
    assert sim is not None

    def refused() -> list[int]:
        with pytest.raises(ReplayError, match="raise the capacity"):  # told by the last part of it
            Agent(STATE, [3, 2], CONFIG, environments=200)
        gc.collect()
        return [
            sim.fxHostsimCounter(f"live.{kind}".encode())
            for kind in ("allocations", "modules", "streams", "graph_execs")
        ]

    assert refused() == refused()


def test_an_exception_while_it_is_made_leaves_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = len(live_allocations())
    from foxhunt_rt.dqn import snapshot

    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, "Actor", Broken)
    with pytest.raises(KeyboardInterrupt):
        agent.snapshot()
    gc.collect()
    assert len(live_allocations()) == before
    agent.step()
    assert agent.drain() is not None
