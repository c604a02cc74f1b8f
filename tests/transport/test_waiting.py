"""Signals: who waits is woken, and who fires learns whether anybody was."""

from headwater.transport.waiting import Signal


def test_a_signal_tells_whether_it_woke_somebody():
    signal, woken = Signal(), []
    assert signal.fire() is False
    signal.wake = lambda: woken.append(True)
    assert signal.fire() is True and woken == [True]
    signal.wake = None
    assert signal.fire() is False and woken == [True]
