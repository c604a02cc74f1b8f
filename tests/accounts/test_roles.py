"""The privileges that a role grants."""

import pytest

from headwater.accounts.roles import ADMINISTRATOR, NODE, ORDINARY, ROLES, Grant, granted, read_grants
from headwater.errors import OptionError
from headwater.wire.privilege import ADMINISTER, EVERYTHING, LOGIN, READ, REPLICATE, STREAM, WRITE


def rights(text: str, bucket: str = "b") -> int:
    return granted(read_grants(text), bucket)


def test_every_user_may_what_whoever_has_logged_in_may() -> None:
    assert granted([], "b") == LOGIN


def test_roles_add_up() -> None:
    assert rights("read, write") == LOGIN | READ | WRITE


def test_a_role_for_one_bucket_grants_nothing_in_another() -> None:
    assert rights("read,write:orders") == LOGIN | READ
    assert rights("read,write:orders", "orders") == LOGIN | READ | WRITE


def test_who_replicates_streams_and_only_who_administers_may_do_all() -> None:
    assert rights("replicate") == LOGIN | STREAM | REPLICATE
    assert rights("administer") == granted(ADMINISTRATOR, "b") == EVERYTHING
    assert not granted([*ORDINARY, *NODE], "b") & ADMINISTER


def test_each_role_grants_something_of_its_own() -> None:
    assert len({rights(role) for role in ROLES}) == len(ROLES)


def test_roles_are_said_as_they_are_read() -> None:
    told = "read,write[orders],read[orders:shop],stream[orders:shop:carts]"
    assert ",".join(map(str, read_grants(told))) == told
    assert list(map(str, read_grants("read,write:orders,read[*]"))) == ["read", "write[orders]"]
    assert read_grants("read:b") == read_grants("read[b]") == (Grant("read", "b"),)
    assert read_grants("stream[b:s:c]") == (Grant("stream", "b", "s", "c"),)


def test_a_role_for_a_part_grants_nothing_in_the_whole() -> None:
    assert rights("read[b:shop],write[b:shop:carts]") == LOGIN


@pytest.mark.parametrize(
    "text",
    ["", ",", "king", "read:", "read:b:s", "Read", "read[]", "read[b", "read[b::c]", "read[b:s:c:d]", "read[b]x"],
)
def test_roles_that_are_none_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(OptionError, match=r"administer|ROLE\[BUCKET\]"):
        read_grants(text)


@pytest.mark.parametrize("role", ["administer", "monitor", "replicate"])
def test_roles_that_are_not_about_documents_are_for_whole_buckets(role: str) -> None:
    assert read_grants(f"{role}[b]") == (Grant(role, "b"),)
    with pytest.raises(OptionError, match="only read, stream, write are for less"):
        read_grants(f"{role}[b:shop]")
