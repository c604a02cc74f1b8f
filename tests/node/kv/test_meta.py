"""GET_META and the WITH_META commands."""

from struct import pack, unpack

import pytest

from headwater.wire import xattr
from tests.node.storage.model import compact
from tests.node.support import NOON, Talk

GET_META, GETQ_META, SET_META, SETQ_META, ADD_META, DEL_META, DELQ_META = 0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0xA8, 0xA9


def head(rev: int = 1, cas: int = 100, *, flags: int = 0, expiry: int = 0) -> bytes:
    return pack(">IIQQ", flags, expiry, rev, cas)


def test_meta_of_a_document_and_of_its_tombstone(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=pack(">II", 0xDEADBEEF, 0), value=b"{}")
    answer = talk.one(GET_META, key=b"k")
    assert unpack(">IIIQ", answer.extras) == (0, 0xDEADBEEF, 0, 1) and answer.cas > 0 and answer.value == b""
    assert talk.one(GET_META, key=b"k", extras=b"\2").extras[20:] == b"\1"
    talk.one(4, key=b"k")
    deleted, _, time, rev = unpack(">IIIQ", talk.one(GET_META, key=b"k").extras)
    assert (deleted, time, rev) == (1, NOON, 2)


def test_meta_of_what_never_was(talk: Talk) -> None:
    assert talk.one(GET_META, key=b"k").status == 1
    assert talk.ask(GETQ_META, key=b"k") == []
    assert talk.one(GET_META, key=b"k", extras=b"\7").status == 4


def test_a_document_is_stored_as_the_other_cluster_has_it(talk: Talk) -> None:
    talk.hello(4)
    answer = talk.one(SET_META, key=b"k", extras=head(7, 123456, flags=5, expiry=NOON + 9), value=b"v")
    assert answer.cas == 123456 and answer.extras == (1).to_bytes(8, "big") + (1).to_bytes(8, "big")
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None
    assert (stored.rev_seqno, stored.cas, stored.flags, stored.expiry) == (7, 123456, 5, NOON + 9)


@pytest.mark.parametrize(
    ("extras", "status"),
    [
        (head(2, 100), 0),
        (head(1, 101), 0),
        (head(1, 100, expiry=1), 0),
        (head(1, 100, flags=6), 0),
        (head(1, 100, flags=5), 2),
        (head(1, 99), 2),
        (head(0, 500), 2),
    ],
)
def test_the_greater_revision_wins_then_cas_expiry_and_flags(talk: Talk, extras: bytes, status: int) -> None:
    assert talk.one(SET_META, key=b"k", extras=head(1, 100, flags=5), value=b"old").status == 0
    assert talk.one(SET_META, key=b"k", extras=extras, value=b"new").status == status


def test_when_all_is_equal_attributes_win(talk: Talk) -> None:
    talk.hello(6)
    talk.one(SET_META, key=b"k", extras=head(), value=b"old")
    value = xattr.join({"a": b"1"}, b"new")
    assert talk.one(SET_META, key=b"k", extras=head(), value=value, datatype=4).status == 0
    assert talk.one(SET_META, key=b"k", extras=head(), value=value, datatype=4).status == 2


def test_tombstones_take_part_and_a_missing_key_gets_one(talk: Talk) -> None:
    assert talk.one(DEL_META, key=b"k", extras=head(5, 100, expiry=NOON - 3)).status == 0
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and stored.deleted and (stored.rev_seqno, stored.delete_time) == (5, NOON - 3)
    assert talk.one(SET_META, key=b"k", extras=head(4, 999), value=b"v").status == 2
    assert talk.one(DEL_META, key=b"k", extras=head(5, 100)).status == 2
    assert talk.ask(DELQ_META, key=b"k", extras=head(6, 100)) == []


def test_a_tombstone_from_elsewhere_ages_here_from_when_it_came(talk: Talk) -> None:
    store = talk.desk.store
    for key in (b"k", b"behind"):
        assert talk.one(DEL_META, key=key, extras=head(5, 100, expiry=NOON - 1_000_000)).status == 0
    compact(store, purge_before=NOON)
    kept = store.document(0, b"k")
    assert kept is not None and kept.delete_time == NOON - 1_000_000
    compact(store, purge_before=NOON + 3601)
    assert store.document(0, b"k") is None and store.document(0, b"behind") is not None


def test_force_and_skip_pass_over_conflicts(talk: Talk) -> None:
    talk.one(SET_META, key=b"k", extras=head(9, 900), value=b"old")
    assert talk.one(SET_META, key=b"k", extras=head(1) + pack(">I", 1), value=b"f").status == 0
    answer = talk.one(SET_META, key=b"k", extras=head(1) + pack(">I", 0x0C), value=b"s")
    assert answer.status == 0 and answer.cas > 900


def test_impossible_options_and_lengths(talk: Talk) -> None:
    talk.hello(7)
    for options in (0x02, 0x04, 0x20, 0x10):
        assert talk.one(SET_META, key=b"k", extras=head() + pack(">I", options)).status == 4
    for size in (0, 23, 25, 29, 31):
        assert talk.one(SET_META, key=b"k", extras=bytes(size)).status == 4
    for cas in (0, 2**64 - 1):
        assert talk.one(SET_META, key=b"k", extras=head(1, cas)).status == 0x0F


def test_without_xerror_an_impossible_cas_is_key_eexists(talk: Talk) -> None:
    assert talk.one(SET_META, key=b"k", extras=head(1, 0)).status == 2


def test_old_extended_metadata_is_cut_off(talk: Talk) -> None:
    assert talk.one(SET_META, key=b"k", extras=head() + pack(">H", 3), value=b"valueXXX").status == 0
    assert talk.one(0, key=b"k").value == b"value"
    assert talk.one(SET_META, key=b"k", extras=head(2) + pack(">IH", 0, 3), value=b"newXXX").status == 0
    assert talk.one(0, key=b"k").value == b"new"
    assert talk.one(SET_META, key=b"k", extras=head(3) + pack(">H", 3), value=b"12").status == 4


def test_the_header_cas_is_a_lock_on_what_is_there(talk: Talk) -> None:
    assert talk.one(SET_META, key=b"k", extras=head(2, 200), cas=5).status == 1
    talk.one(SET_META, key=b"k", extras=head(2, 200), value=b"v")
    assert talk.one(SET_META, key=b"k", extras=head(3, 300), cas=5).status == 2
    assert talk.one(SET_META, key=b"k", extras=head(3, 300), cas=200).status == 0


def test_add_with_meta_wants_no_live_document(talk: Talk) -> None:
    assert talk.one(ADD_META, key=b"k", extras=head(1), value=b"v").status == 0
    assert talk.one(ADD_META, key=b"k", extras=head(9), value=b"v").status == 2
    assert talk.ask(SETQ_META, key=b"k", extras=head(9), value=b"v") == []


def test_a_tombstone_holds_attributes_or_nothing(talk: Talk) -> None:
    talk.hello(6)
    assert talk.one(DEL_META, key=b"k", extras=head(1), value=b"v").status == 4
    section = xattr.join({"_s": b"1"})
    assert talk.one(DEL_META, key=b"k", extras=head(1), value=section, datatype=4).status == 0


def test_a_deletion_can_be_an_expiration(talk: Talk) -> None:
    assert talk.one(DEL_META, key=b"k", extras=head(1, expiry=NOON) + pack(">I", 0x10)).status == 0
    with talk.desk.store.view(0) as view:
        assert view.end_seqno == 0  # not durable yet
    talk.desk.committer.commit()
    with talk.desk.store.view(0) as view:
        assert view.next_frame()[1] == 0x59


EXPIRED = pack(">I", 0x10)


def test_an_expiration_loses_against_a_document_of_its_revision_on_both_sides(talk: Talk) -> None:
    prolonged = head(2, 200, expiry=NOON + 900)
    assert talk.one(SET_META, key=b"k", extras=head(1, 100, expiry=NOON + 10), value=b"v").status == 0
    talk.desk.clock.seconds += 50
    assert talk.one(0, key=b"k").status == 1  # it ran out here, under revision 2 and a CAS of now
    assert talk.one(SET_META, key=b"k", extras=head(1, 100, expiry=NOON + 10), value=b"v").status == 2
    assert talk.one(SET_META, key=b"k", extras=prolonged, value=b"v").status == 0
    assert talk.one(DEL_META, key=b"k", extras=head(2, 300, expiry=NOON + 10) + EXPIRED).status == 2
    assert talk.one(0, key=b"k").value == b"v"
    assert talk.one(DEL_META, key=b"k", extras=head(3, 300, expiry=NOON + 900) + EXPIRED).status == 0
    assert talk.one(DEL_META, key=b"k", extras=head(3, 300, expiry=NOON + 900) + EXPIRED).status == 2


def test_an_expiration_loses_against_a_deletion_of_its_revision_which_a_document_beats_by_its_cas(talk: Talk) -> None:
    assert talk.one(DEL_META, key=b"k", extras=head(2, 300)).status == 0
    assert talk.one(SET_META, key=b"k", extras=head(2, 200), value=b"v").status == 2
    assert talk.one(DEL_META, key=b"k", extras=head(2, 400) + EXPIRED).status == 2
    assert talk.one(SET_META, key=b"k", extras=head(2, 301), value=b"v").status == 0


RETURN_META = 0xB2
A_SET, AN_ADD, A_DELETION = 1, 2, 3


def asking_back(kind: int, *, flags: int = 0, expiry: int = 0) -> bytes:
    return pack(">III", kind, flags, expiry)


def test_a_change_that_asks_for_its_place_gets_it_without_any_feature(talk: Talk) -> None:
    stored = talk.one(RETURN_META, key=b"k", extras=asking_back(A_SET, flags=5, expiry=NOON + 9), value=b"v")
    uuid = talk.one(0x96).value[:8]
    assert stored.status == 0 and stored.extras == uuid + pack(">Q", 1) and stored.value == b""
    found = talk.desk.store.document(0, b"k")
    assert found is not None and (found.value, found.flags, found.expiry, found.cas) == (b"v", 5, NOON + 9, stored.cas)
    deleted = talk.one(RETURN_META, key=b"k", extras=asking_back(A_DELETION), cas=stored.cas)
    assert deleted.status == 0 and deleted.extras == uuid + pack(">Q", 2)
    assert talk.one(0, key=b"k").status == 1


def test_such_changes_are_refused_as_their_plain_forms_are(talk: Talk) -> None:
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(A_DELETION)).status == 1
    cas = talk.one(RETURN_META, key=b"k", extras=asking_back(AN_ADD), value=b"v").cas
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(AN_ADD), value=b"v").status == 2
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(A_SET), value=b"v", cas=cas + 1).status == 2
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(A_DELETION), value=b"v").status == 4
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(AN_ADD), cas=cas).status == 4
    assert talk.one(RETURN_META, key=b"k", extras=asking_back(4)).status == 4
    assert talk.one(RETURN_META, key=b"k", extras=bytes(11)).status == 4
