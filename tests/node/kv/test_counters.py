"""INCREMENT, DECREMENT, TOUCH, GAT."""

from struct import pack

import pytest

from tests.node.support import NOON, Talk

INCR, DECR, TOUCH, GAT, INCRQ, DECRQ, GATQ = 5, 6, 0x1C, 0x1D, 0x15, 0x16, 0x1E


def count(talk: Talk, opcode: int, delta: int, initial: int = 0, expiry: int = 0, **more: object) -> tuple[int, int]:
    answer = talk.one(opcode, key=b"n", extras=pack(">QQI", delta, initial, expiry), **more)
    return answer.status, int.from_bytes(answer.value, "big") if answer.status == 0 else -1


def test_a_missing_counter_begins_at_its_initial_value(talk: Talk) -> None:
    assert count(talk, INCR, 5, 10) == (0, 10)
    assert count(talk, INCR, 5, 10) == (0, 15)
    assert talk.one(0, key=b"n").value == b"15"


def test_with_an_expiry_of_all_ones_it_must_exist(talk: Talk) -> None:
    assert count(talk, INCR, 5, 10, 0xFFFF_FFFF) == (1, -1)


def test_increment_wraps_and_decrement_stops_at_zero(talk: Talk) -> None:
    assert count(talk, INCR, 1, 2**64 - 1) == (0, 2**64 - 1)
    assert count(talk, INCR, 2) == (0, 1)
    assert count(talk, DECR, 5) == (0, 0)


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1 ", b"1.5", b"9" * 21, b"18446744073709551616"])
def test_what_is_no_number_can_not_be_counted(talk: Talk, value: bytes) -> None:
    assert talk.one(1, key=b"n", extras=bytes(8), value=value).status == 0
    assert count(talk, INCR, 1) == (6, -1)


def test_flags_and_expiry_stay(talk: Talk) -> None:
    talk.one(1, key=b"n", extras=pack(">II", 9, 50), value=b"41")
    assert count(talk, INCR, 1, expiry=1000) == (0, 42)
    stored = talk.desk.store.document(0, b"n")
    assert stored is not None and (stored.flags, stored.expiry, stored.value) == (9, NOON + 50, b"42")


def test_quiet_forms_are_silent_on_success_only(talk: Talk) -> None:
    extras = pack(">QQI", 1, 1, 0)
    assert talk.ask(INCRQ, key=b"n", extras=extras) == talk.ask(DECRQ, key=b"n", extras=extras) == []
    talk.one(1, key=b"n", extras=bytes(8), value=b"x")
    assert talk.one(INCRQ, key=b"n", extras=extras).status == 6


def test_a_counter_takes_no_cas_and_wants_20_bytes(talk: Talk) -> None:
    assert count(talk, INCR, 1, cas=5)[0] == 4
    assert talk.one(INCR, key=b"n", extras=bytes(8)).status == 4


def test_touch_gives_a_new_expiry_seqno_and_cas(talk: Talk) -> None:
    cas = talk.one(1, key=b"k", extras=bytes(8), value=b"v").cas
    answer = talk.one(TOUCH, key=b"k", extras=pack(">I", 10))
    assert answer.status == 0 and answer.extras == b"" and answer.cas == cas + 1
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and (stored.expiry, stored.seqno, stored.rev_seqno) == (NOON + 10, 2, 2)
    assert talk.one(TOUCH, key=b"absent", extras=pack(">I", 10)).status == 1


def test_a_touch_that_changes_nothing_is_no_change(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=pack(">II", 0, NOON + 10), value=b"v")
    assert talk.one(TOUCH, key=b"k", extras=pack(">I", 10)).status == 0
    assert talk.desk.store.index.high_seqno(0) == 1


def test_get_and_touch_does_both(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=pack(">II", 3, 0), value=b"v")
    answer = talk.one(GAT, key=b"k", extras=pack(">I", 10))
    assert (answer.value, answer.extras) == (b"v", pack(">I", 3))
    assert talk.ask(GATQ, key=b"absent", extras=pack(">I", 10)) == []
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and stored.expiry == NOON + 10 and stored.cas == answer.cas


def test_numbers_at_the_edges_are_exact(talk: Talk) -> None:
    for initial in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1):
        talk.one(4, key=b"n")
        assert count(talk, INCR, 0, initial) == (0, initial)
        assert talk.one(0, key=b"n").value == str(initial).encode()
