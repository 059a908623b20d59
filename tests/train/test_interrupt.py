"""The first signal asks for the end of training, the second is that end, and afterwards the program's own handlers are back."""

from __future__ import annotations

import signal
import threading

import pytest

from foxhunt_rt.train.interrupt import Interrupt


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_at_once(first: signal.Signals, second: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert interrupt.requested == 0
        signal.raise_signal(first)
        assert interrupt.requested == first
        with pytest.raises(KeyboardInterrupt, match="interrupted twice"):
            signal.raise_signal(second)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_in_another_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def train() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [before]
