"""Support for tests of graph replays: assertions here, fixtures and marks in the pytest plugin `foxhunt_rt.testing.plugin`.

The plugin comes with the package (entry point ``pytest11``) and does nothing until a driver is chosen; see docs/testing.md.
"""

from foxhunt_rt.driver import PLUMBING, DriverCalls
from foxhunt_rt.testing.assertions import (
    assert_calls,
    assert_isolated,
    assert_no_allocation,
    assert_no_growth,
    assert_no_sync,
    assert_replay_matches,
)

__all__ = ["PLUMBING", "DriverCalls", "assert_calls", "assert_isolated", "assert_no_allocation", "assert_no_growth",
           "assert_no_sync", "assert_replay_matches"]  # fmt: skip
