"""Which list a member has after it was told one."""

from __future__ import annotations

from headwater.node.users.sharing import outcome
from headwater.wire.users import UserEntry, UserList

OURS, NOBODYS, ELSEWHERE = (
    UserList(cluster, {name: UserEntry(1, (), {})})
    for cluster, name in (("here", "ann"), ("", "bob"), ("there", "carl"))
)


def test_lists_of_one_cluster_become_one() -> None:
    told = UserList("here", {"dora": UserEntry(4, (), {})})
    made = outcome(OURS, told, "here")
    assert made is not None and list(made.users) == ["ann", "dora"] and made.cluster == "here"


def test_who_joins_has_the_clusters_list_in_the_place_of_his_own() -> None:
    assert outcome(NOBODYS, OURS, "here") == outcome(ELSEWHERE, OURS, "here") == OURS


def test_who_has_none_takes_what_he_is_told() -> None:
    assert outcome(None, OURS, "here") == OURS and outcome(None, NOBODYS, "") == NOBODYS


def test_a_list_that_is_not_the_clusters_changes_nothing() -> None:
    assert outcome(OURS, NOBODYS, "here") is outcome(OURS, ELSEWHERE, "here") is None
    assert outcome(NOBODYS, ELSEWHERE, "here") is outcome(NOBODYS, ELSEWHERE, "") is None
