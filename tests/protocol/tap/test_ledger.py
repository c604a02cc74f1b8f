from headwater.protocol.tap.ledger import OPAQUES, WINDOW_MESSAGES, Ledger, TapPlace, TapStep

BEGUN = TapPlace(TapStep.BACKFILL)


def test_an_acknowledgement_covers_every_earlier_message() -> None:
    ledger = Ledger(acknowledges=True)
    ledger.sending("a", BEGUN, [10, 20, 30], asks=False)
    ledger.sending("b", BEGUN, [5], asks=True)
    ledger.acknowledge(4)
    assert (ledger.unacked, ledger.awaits, ledger.runs) == (0, False, ())


def test_what_is_unacknowledged_is_taken_back_to_the_place_before_it() -> None:
    ledger = Ledger(acknowledges=True)
    ledger.sending("a", BEGUN, [10, 20, 30], asks=False)
    ledger.sending("b", TapPlace(TapStep.LIVE, 4), [5], asks=False)
    ledger.sending("a", TapPlace(TapStep.BACKFILL, 30), [40], asks=True)
    ledger.acknowledge(2)
    assert ledger.take_back() == [("a", TapPlace(TapStep.BACKFILL, 20)), ("b", TapPlace(TapStep.LIVE, 4))]
    assert (ledger.next_opaque, ledger.unacked, ledger.awaits) == (6, 0, False)


def test_a_stream_that_begins_anew_is_taken_back_to_no_place_before_that() -> None:
    ledger, begin = Ledger(acknowledges=True), TapPlace(TapStep.INITIAL)
    ledger.sending("a", BEGUN, [10, 20, 30], asks=False)
    ledger.sending("b", BEGUN, [5], asks=True)
    ledger.restart("a", begin)
    assert [run.before for run in ledger.acknowledge(2)] == [begin]
    assert ledger.take_back() == [("a", begin), ("b", BEGUN)]


def test_opaques_run_to_the_highest_number_and_from_1_again() -> None:
    ledger = Ledger(acknowledges=True)
    ledger.sent = ledger.acked = OPAQUES - 1
    assert ledger.next_opaque == OPAQUES
    ledger.sending("a", BEGUN, [1, 2], asks=True)
    assert ledger.next_opaque == 2
    assert [ledger.number_of(opaque) for opaque in (OPAQUES, 1, 2, 0)] == [OPAQUES, OPAQUES + 1, None, None]


def test_every_thousandth_message_asks() -> None:
    ledger = Ledger(acknowledges=True)
    ledger.sending("a", BEGUN, range(1, 1500), asks=False)
    assert ledger.ack_request == 1000
    assert ledger.room == WINDOW_MESSAGES - 1499


def test_without_acknowledgements_nothing_is_kept() -> None:
    ledger = Ledger(acknowledges=False)
    ledger.sending("a", BEGUN, [1, 2, 3], asks=True)
    assert (ledger.unacked, ledger.awaits, ledger.room, ledger.runs) == (0, False, WINDOW_MESSAGES, ())
    assert ledger.next_opaque == 4
