"""prune and perturb: the schedule, what leaves and stays out exactly, the gradient under the mask, the noise, and that no
captured module is launched between epochs (known failure K4)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import PruneConfig
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.children.prune import Prune, choose, sparsity
from foxhunt_rt.dqn.children.vaccine import Vaccine
from foxhunt_rt.kernels import abi
from foxhunt_rt.testing import assert_calls

from ...replay.oracle import random_words
from .. import feature_harness as harness
from ..test_whole_step import CASES, check_gradient, take_step

ON = ("prune.enabled=true", "prune.sparsity=0.6", "prune.first_epoch=1", "prune.last_epoch=3", "optim.horizon=1000")


def test_the_schedule_is_that_of_zhu_and_gupta() -> None:
    config = PruneConfig(enabled=True, sparsity=0.8, first_epoch=2, last_epoch=5)
    found = [sparsity(config, epoch) for epoch in range(8)]
    assert found[:2] == [0.0, 0.0] and found[5:] == [0.8] * 3
    s_f, t0, n = 0.8, 1, 4  # s_t = s_f + (s_i - s_f)(1 - (t - t0)/n)^3 with s_i = 0
    assert found[2:5] == pytest.approx([s_f - s_f * (1 - (t - t0) / n) ** 3 for t in (2, 3, 4)])


def test_the_smallest_leave_and_stay_out() -> None:
    random = np.random.default_rng(0)
    w = random.normal(size=(7, 5)).astype(np.float32)
    mask = np.ones_like(w)
    mask[0, :3] = 0  # out, though w may be large there
    new = choose(w, mask, 0.4)
    assert (new == 0).sum() == 14 and not new[0, :3].any()
    rest = np.where(mask == 0, np.inf, np.abs(w))
    assert rest[(new == 0) & (mask != 0)].max() < rest[new != 0].min()
    assert (choose(w, mask, 0.0) == mask).all() and (
        choose(np.zeros_like(w), np.ones_like(w), 0.2).ravel()[:7] == 0
    ).all()


def masked(learner: Learner) -> Any:
    """Where pruned, by flat index."""
    return np.flatnonzero(harness.extension(learner, Prune).mask.to_numpy() == 0.0)


def test_pruned_parameters_are_exact_zeros_ever_after(runtime: Runtime) -> None:
    """Beside weight decay, projection, vaccine, perturbation and a restart of the momentum."""
    learner = harness.learner(runtime, (*ON, "optim.weight_decay=0.1", "spectral.enabled=true", "spectral.sigma_max=0.5",
                                        "vaccine.enabled=true", "vaccine.period=2", "vaccine.rate=1", "perturb.enabled=true",
                                        "optim.restart_period=7", "optim.restart_momentum=0.5"))  # fmt: skip
    adam, seen = learner.adam, np.array([], np.int64)
    kept = harness.extension(learner, Vaccine).buffers.previous
    real = np.ones(learner.layout.size, bool)
    real[learner.layout.pads()] = False
    prunable = sum(r * c for r, c in (layer.weight.shape for layer in learner.layout.layers[:-1]))
    for epoch in range(5):
        learner.begin_epoch(epoch)
        out = masked(learner)
        share = sparsity(learner.config.prune, epoch)
        assert real[out].all() and len(out) == pytest.approx(share * prunable, abs=len(learner.layout.layers))
        assert set(seen) <= set(out), "who left stays out"
        seen = out
        for steps in range(2):
            for name in ("theta", "target", "m", "v"):
                assert not getattr(adam, name).to_numpy()[out].any(), (epoch, steps, name)
            assert not kept.to_numpy()[out].any()
            for _ in range(5):
                learner.step()
        record = learner.drain()[-1]
        assert record["prune_sparsity"] == np.float32(len(out) / prunable)
        assert not learner.grad.grad.to_numpy()[out].any()
    assert len(seen) > 0.5 * prunable and adam.theta.to_numpy()[: len(real)][real].any()
    assert not adam.theta.to_numpy()[~real].any()
    assert harness.extension(learner, Prune).report()["sparsity"] == pytest.approx([0.6], abs=0.02)
    learner.close()


def test_what_is_not_pruned_keeps_its_bits(runtime: Runtime) -> None:
    learner = harness.learner(runtime, ON)
    for _ in range(4):
        learner.step()
    learner.drain()
    before = {name: getattr(learner.adam, name).to_numpy() for name in ("theta", "target", "m", "v")}
    learner.begin_epoch(3)
    out = masked(learner)
    assert len(out)
    for name, array in before.items():
        array[out] = 0.0
        np.testing.assert_array_equal(getattr(learner.adam, name).to_numpy(), array)
    learner.close()


def test_gradient_norm_and_clip_are_those_under_the_mask(runtime: Runtime) -> None:
    """The whole step's oracle at the pruned parameters, its gradient multiplied by the mask."""
    case = dataclasses.replace(CASES[3], settings=(*CASES[3].settings, *ON[:-1], "optim.max_grad_norm=1e-3"))
    taken = take_step(runtime, case, lambda learner: learner.begin_epoch(3))
    learner, expected = taken.learner, taken.reference
    flat, mask = learner.grad.grad.to_numpy(), np.ones(learner.layout.size, np.float32)
    mask[masked(learner)] = 0.0
    for name, part in learner.layout.unpack(mask).items():
        expected.gradient[name] = expected.gradient[name] * part
    check_gradient(taken, expected, flat)
    norm = np.linalg.norm(flat.astype(np.float64))
    assert taken.record["grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert taken.record["clip"] == pytest.approx(1e-3 / norm, rel=1e-5)
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


def noise(learner: Learner, rng_step: int) -> Any:
    """xi of every element of the flat buffer, pads zero: Philox (Salmon 2011) and Box & Muller 1958, in float64."""
    out = np.zeros(learner.layout.size)
    for at in np.flatnonzero(~learner.layout.pads()):
        x, y, _, _ = random_words(harness.CASE.seed, rng_step, abi.constant("RNG_NOISE"), int(at) | 1 << 31)
        out[at] = math.sqrt(-2 * math.log(((x >> 8) + 1) / 2**24)) * math.cos(2 * math.pi * (y >> 8) / 2**24)
    return out


PERTURB = ("perturb.enabled=true", "perturb.shrink=0.7", "perturb.sigma=0.05", "perturb.period=2", "optim.horizon=1000")


@pytest.mark.parametrize("pruned", [False, True])
def test_shrink_and_perturb_against_the_paper(runtime: Runtime, pruned: bool) -> None:
    learner = harness.learner(runtime, (*PERTURB, *(ON[:-1] if pruned else ())))
    for epoch in range(5):
        for _ in range(3):
            learner.step()
        learner.drain()
        before = {name: getattr(learner.adam, name).to_numpy() for name in ("theta", "target", "m", "v")}
        learner.begin_epoch(epoch)
        mask = np.ones(learner.layout.size)
        if pruned:
            mask[masked(learner)] = 0.0
        expected = before["theta"].astype(np.float64) * mask
        if epoch in (2, 4):
            xi = noise(learner, 3 * (epoch + 1))
            assert abs(xi[xi != 0].mean()) < 0.3 and 0.8 < xi[xi != 0].std() < 1.2
            expected = (0.7 * expected + 0.05 * xi) * mask
        found = learner.adam.theta.to_numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert not found[learner.layout.pads()].any()
        for name in ("target", "m", "v"):
            np.testing.assert_array_equal(getattr(learner.adam, name).to_numpy(), before[name] * mask)
    learner.close()


def test_known_failure_k4(runtime: Runtime) -> None:
    """Work between epochs launched captured functions. Here its users have modules of their own, none of which the step captured,
    and the step after it is still one launch."""
    settings = (*PERTURB, *ON[:-1], "perturb.period=1")
    with Runtime(runtime.device.ordinal) as own:
        learner = harness.learner(own, settings)
        learner.step()
        learner.drain()
        learner.begin_epoch(2)
        entries = own.ledger.entries()
        assert not own.ledger.breaches
        for user in ("prune", "perturb"):
            its = [e for e in entries if user in e.ungraphed.values()]
            assert its and not any(e.captured for e in its), user
        learner.step()
        learner.drain()
        with assert_calls({"cuGraphLaunch": 10}, runtime=own):
            for _ in range(10):
                learner.step()
        learner.close()


def test_resume_and_reset(runtime: Runtime) -> None:
    settings = (*PERTURB, *ON[:-1])

    def prepare(learner: Learner) -> None:
        learner.begin_epoch(2)

    harness.check_resume(runtime, settings, prepare=prepare)
    harness.check_reset(runtime, settings, prepare=prepare)


def test_off_they_add_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    core = harness.footprint(runtime, ())
    assert core == harness.footprint(runtime, (*ON[1:-1], *PERTURB[1:-1]))
    prune, perturb = harness.footprint(runtime, ON[:1]), harness.footprint(runtime, PERTURB[:1])
    assert prune.nodes == core.nodes + 1 and prune.children - core.children == {"adam_grad.prune"}
    order = list(prune.order)
    assert order.index("adam_grad") + 1 == order.index("adam_grad.prune") == order.index("adam") - 1
    assert (perturb.nodes, perturb.order, perturb.bytes) == (core.nodes, core.order, core.bytes)
    both = harness.footprint(runtime, (*ON[:1], "vaccine.enabled=true")).order
    assert both[both.index("adam_grad") + 1 :][:3] == ("adam_grad.prune", "adam_grad.vaccine", "adam")


def test_the_sparsity_of_the_record_moves_at_events_alone(runtime: Runtime) -> None:
    learner, found = harness.learner(runtime, ON), []
    for epoch in range(4):
        learner.begin_epoch(epoch)
        for _ in range(3):
            learner.step()
        found.append(learner.drain()["prune_sparsity"])
    assert all((part == part[0]).all() for part in found)
    first = [float(part[0]) for part in found]
    assert first[0] == 0.0 and first == sorted(set(first)) and first[-1] == pytest.approx(0.6, abs=0.02)
    learner.close()
