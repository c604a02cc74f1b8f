"""The rights of a user as a value, and what they refuse; tests/node/kv/test_rights.py has them at work."""

from __future__ import annotations

import pytest

from headwater.accounts.roles import read_grants
from headwater.node.kv.access import check_collection, check_place, check_rights, rights_in
from headwater.node.kv.rights import Access, rule_of
from headwater.node.refused import CommandRefused
from headwater.node.users.logins import Users
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import ADMINISTER, LOGIN, READ, WRITE
from headwater.wire.status import Status
from tests.node.support import Desk, Talk


def talk_of(counter: Desk, grants: str) -> Talk:
    counter.users = Users({"ann": "secret"}, {"ann": read_grants(grants)})
    talk = counter.session()
    talk.kv.user = "ann"
    talk.kv.select(counter)  # type: ignore[arg-type]
    return talk


def test_nobody_has_no_right() -> None:
    nobody = Access()
    assert not (nobody.is_logged_in or nobody.is_administrator or nobody.anywhere)
    all_of_it = Access("ann", int(LOGIN | ADMINISTER))
    assert all_of_it.is_logged_in and all_of_it.is_administrator and all_of_it.anywhere == all_of_it.rights


def test_rights_in_a_collection_are_those_of_the_bucket_and_of_the_collection(counter: Desk) -> None:
    kv = talk_of(counter, "read:default").kv
    assert rights_in(kv, 0) & READ and not rights_in(kv, 0) & WRITE
    kv = talk_of(counter, "write[default:_default:_default]").kv
    manifest = counter.bucket.collections.manifest
    assert kv.access.in_collection(manifest, 0) == rights_in(kv, 0)
    assert rights_in(kv, 0) & WRITE and not kv.access.rights & WRITE and kv.access.anywhere & WRITE


def test_what_is_missing_is_refused_with_its_name(counter: Desk) -> None:
    kv, frame = talk_of(counter, "read:default").kv, Frame(0x80, Opcode.SET, key=b"k")
    check_rights(kv, Frame(0x80, Opcode.GET, key=b"k"), rule_of(Opcode.GET))
    with pytest.raises(CommandRefused, match=r"SET needs") as refused:
        check_rights(kv, frame, rule_of(Opcode.SET))
    assert refused.value.status == Status.EACCESS
    check_rights(kv, frame, rule_of(Opcode.SET), int(READ | WRITE | LOGIN))
    with pytest.raises(CommandRefused, match="not logged in"):
        check_rights(counter.session().kv, frame, rule_of(Opcode.SET))


def test_a_collection_without_any_right_is_not_there(counter: Desk) -> None:
    kv = talk_of(counter, "read[default:other:one]").kv
    with pytest.raises(CommandRefused) as refused:
        check_collection(kv, 0, READ)
    assert refused.value.status == Status.UNKNOWN_COLLECTION
    kv.knows_collections = True
    with pytest.raises(CommandRefused) as refused:
        check_place(kv, Frame(0x80, Opcode.GET, key=b"\0k"), rule_of(Opcode.GET))
    assert refused.value.status == Status.UNKNOWN_COLLECTION
    kv = talk_of(counter, "read[default:_default:_default]").kv
    check_collection(kv, 0, READ)
    with pytest.raises(CommandRefused, match="in collection 0x0") as refused:
        check_collection(kv, 0, WRITE)
    assert refused.value.status == Status.EACCESS
