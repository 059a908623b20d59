"""The isolation rules hold by construction, and a breach is named (known failures K2, K3, K4)."""

from __future__ import annotations

import numpy as np
import pytest

import foxhunt_rt as fx
from foxhunt_rt.graph import IsolationError, Ledger

N = 256
ARGS = {"value": 1.0, "n": N}


@pytest.fixture
def built(runtime):
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("isolated")
    for name in ("first", "second"):
        with plan.child(name, reads=[], writes=[x]) as c:
            c.launch("add_scalar", (2,), (128,), dict(x=x, **ARGS))
    step = plan.build()
    yield step, x
    step.close()


def functions_by_user(runtime):
    users: dict[tuple[int, str], set[str]] = {}
    for row in runtime.ledger.rows():
        for how in ("captured", "ungraphed"):
            for kernel, user in row[how].items():
                users.setdefault((row["module"], kernel), set()).add(user)
    return users


def test_one_kernel_in_two_children_is_two_functions(runtime, built):
    """K3: the same utility kernel slipped into a second child again and again."""
    users = [u for (_, kernel), us in functions_by_user(runtime).items() if kernel == "add_scalar" for u in us]
    name = built[0].plan.name
    assert {f"{name}/first", f"{name}/second"} <= set(users)
    assert all(len(us) == 1 for us in functions_by_user(runtime).values())


def test_no_ungraphed_user_in_a_captured_module(runtime, built):
    """K4: work between epochs launched captured functions ungraphed."""
    step, x = built
    step.run_ungraphed()
    runtime.ungraphed("between epochs").launch("add_scalar", (2,), (128,), dict(x=x, **ARGS))
    assert x.to_numpy()[0] == 3
    for row in runtime.ledger.rows():
        assert not (row["captured"] and row["ungraphed"]), row


def test_a_breach_names_both_users(runtime, built):
    step, _ = built
    function = step._functions[0]["add_scalar"]
    with pytest.raises(IsolationError, match=r"launched ungraphed by me, and add_scalar .* captured by .*/first"):
        runtime.ledger.ungraphed(function, "me")
    with pytest.raises(IsolationError, match=r"captured by .*/first and by .*other"):
        runtime.ledger.captured(function, "other")


def test_a_function_that_the_pool_did_not_hand_out_is_found_in_the_capture(runtime, built):
    step, x = built
    stolen = step._functions[0]
    plan = runtime.plan("thief")
    with plan.child("takes", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (2,), (128,), dict(x=x, **ARGS))
    inside = plan.children[0].ops[0]

    class Steals:
        def issue(self, context, stream, functions):
            inside.issue(context, stream, stolen)

    plan.children[0].ops[0] = Steals()
    with pytest.raises(IsolationError, match="did not hand out"):
        plan.build()


def test_audit_records_and_off_does_not_look(built):
    function = built[0]._functions[0]["add_scalar"]
    audit, off = Ledger(fx.graph.Isolation.AUDIT), Ledger(fx.graph.Isolation.OFF)
    for ledger in (audit, off):
        ledger.captured(function, "a")
        ledger.captured(function, "b")
        ledger.ungraphed(function, "c")
    assert len(audit.breaches) == 2 and off.breaches == []


def test_table_lists_every_function(runtime, built):
    table = runtime.ledger.table()
    assert "add_scalar" in table and f"{built[0].plan.name}/second" in table and "captured" in table
