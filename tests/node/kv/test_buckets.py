"""The value of a request that makes a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.accounts.roles import read_grants
from headwater.node.buckets.catalog import NewBucket
from headwater.node.kv.buckets import asked_of
from headwater.node.refused import CommandRefused
from headwater.node.users.logins import Users
from headwater.wire.status import Status
from tests.node.support import desk


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (b"", NewBucket("orders")),
        (b"ep.so\0", NewBucket("orders")),
        (b"\0vbuckets=64;quota_mib=100;state=none", NewBucket("orders", 64, 100, is_empty=True)),
        (b"ep.so\0max_vbuckets=8;state=active;", NewBucket("orders", 8)),
    ],
)
def test_a_value_is_read(value: bytes, made: NewBucket) -> None:
    assert asked_of(b"orders", value) == made


@pytest.mark.parametrize("value", [b"x\0vbuckets=-1", b"x\0vbuckets", b"x\0quota_mib=1e3", b"x\0state=", b"x\0a=b"])
def test_what_is_not_known_is_refused_with_what_is(value: bytes) -> None:
    with pytest.raises(CommandRefused, match="known are vbuckets=N") as refused:
        asked_of(b"orders", value)
    assert refused.value.status == Status.EINVAL


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(CommandRefused, match="not UTF-8"):
        asked_of(b"\xff", b"")


def test_only_who_administers_all_buckets_makes_and_drops_them(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as counter:
        talk = counter.session()
        counter.users = Users({"ann": "secret"}, {"ann": read_grants("administer:default,monitor")})
        talk.kv.user = "ann"
        talk.kv.select(counter)  # type: ignore[arg-type]
        talk.hello(0x07)
        assert talk.kv.access.is_administrator
        for opcode in (0x85, 0x86):
            assert talk.one(opcode, key=b"orders").status == Status.EACCESS
        assert talk.one(0x87).value == b"default"
        assert "it needs administer" in counter.warnings[-1]
