"""Mixed radix, branch 0 slowest."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from foxhunt_rt.replay import ActionError, decode_actions, encode_actions


@pytest.mark.parametrize("branches", [(1,), (2,), (5, 3, 3, 3), (1, 4, 1), (7, 255)])
def test_round_trip_in_counting_order(branches: tuple[int, ...]) -> None:
    everything = np.array(list(itertools.product(*(range(n) for n in branches))))
    actions = encode_actions(everything, branches)
    assert actions.dtype == np.int32
    np.testing.assert_array_equal(actions, np.arange(math.prod(branches)))
    np.testing.assert_array_equal(decode_actions(actions, branches), everything)
    np.testing.assert_array_equal(decode_actions(actions.reshape(1, -1, 1), branches)[0, :, 0], everything)


def test_what_lies_outside_is_refused() -> None:
    for choices in ([3, 0], [-1, 0], [0, 2], [0], [0.5, 1.0]):
        with pytest.raises(ActionError):
            encode_actions(choices, (3, 2))
    for action in (-1, 6, 1.0):
        with pytest.raises(ActionError):
            decode_actions(action, (3, 2))
    for branches in ((), (0,), (65536, 65536)):
        with pytest.raises(ActionError):
            decode_actions(0, branches)
