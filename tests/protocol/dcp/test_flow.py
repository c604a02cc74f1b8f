"""The ledger is exact: what was sent, less what was acknowledged, is what is outstanding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.protocol.dcp.flow import FlowLedger


def test_flow_control_is_off_at_first_and_then_acknowledgements_mean_nothing() -> None:
    ledger = FlowLedger()
    ledger.send(1 << 40)
    ledger.acknowledge(10)
    assert (ledger.budget_bytes, ledger.outstanding_bytes, ledger.excess_bytes) == (None, 0, 0)


def test_a_window_of_100_bytes_lets_a_marker_and_one_mutation_through() -> None:
    ledger = FlowLedger(100)
    ledger.send(44)
    assert ledger.budget_bytes == 56
    ledger.send(68)
    assert (ledger.outstanding_bytes, ledger.budget_bytes, ledger.is_full) == (112, 0, True)


def test_nothing_goes_through_a_full_window() -> None:
    ledger = FlowLedger(1)
    ledger.send(44)
    with pytest.raises(ValueError, match="28 bytes do not go through a window of 1 bytes"):
        ledger.send(28)
    assert ledger.outstanding_bytes == 44


def test_acknowledging_more_than_was_sent_is_clamped_and_told() -> None:
    ledger = FlowLedger(1000)
    ledger.send(100)
    ledger.acknowledge(130)
    assert (ledger.outstanding_bytes, ledger.acknowledged_bytes, ledger.excess_bytes) == (0, 100, 30)


def test_a_smaller_window_is_full_until_enough_was_acknowledged() -> None:
    ledger = FlowLedger(1000)
    ledger.send(900)
    ledger.resize(500)
    assert ledger.is_full
    ledger.acknowledge(401)
    assert ledger.budget_bytes == 1


def test_switching_flow_control_off_forgets_what_was_outstanding() -> None:
    ledger = FlowLedger(10)
    ledger.send(500)
    ledger.resize(0)
    ledger.resize(10)
    assert ledger.budget_bytes == 10


@pytest.mark.parametrize("window", [-1, 1 << 32])
def test_a_window_is_an_unsigned_32_bit_number(window: int) -> None:
    with pytest.raises(ValueError, match=f"not {window}"):
        FlowLedger().resize(window)


@given(window=st.integers(1, 5000), sizes=st.lists(st.integers(24, 3000)))
def test_at_most_one_message_overshoots(window: int, sizes: list[int]) -> None:
    ledger = FlowLedger(window)
    last = 0
    for size in sizes:
        if not ledger.is_full:
            ledger.send(size)
            last = size
    assert ledger.outstanding_bytes < window + last or not sizes


class Ledgers(RuleBasedStateMachine):
    """Any order of sends, acknowledgements and new windows, beside plain sums."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = FlowLedger()
        self.open = 0

    @precondition(lambda self: not self.ledger.is_full)
    @rule(size=st.integers(1, 1 << 20))
    def send(self, size: int) -> None:
        self.ledger.send(size)
        self.open += size if self.ledger.window_bytes else 0

    @rule(size=st.integers(0, 1 << 21))
    def acknowledge(self, size: int) -> None:
        self.ledger.acknowledge(size)
        self.open = max(0, self.open - size)

    @rule(window=st.sampled_from([0, 1, 100, 1 << 20, 0xFFFF_FFFF]))
    def resize(self, window: int) -> None:
        self.ledger.resize(window)
        self.open = self.open if window else 0

    @invariant()
    def the_sums_agree(self) -> None:
        ledger = self.ledger
        assert ledger.outstanding_bytes == self.open
        assert ledger.is_full == (0 < ledger.window_bytes <= self.open)
        assert ledger.budget_bytes == (max(0, ledger.window_bytes - self.open) if ledger.window_bytes else None)
        assert ledger.sent_bytes >= ledger.acknowledged_bytes + ledger.outstanding_bytes


TestLedgers = Ledgers.TestCase
