"""Accounts of users and their changes."""

from __future__ import annotations

from functools import partial

import pytest

from headwater.accounts.roles import Grant, read_grants
from headwater.accounts.users import (
    Account,
    accounts_of,
    add_account,
    change_account,
    check_name,
    check_password,
    on_list,
    remove_account,
)
from headwater.errors import OptionError, WorkRefused
from headwater.wire.users import UserList


@pytest.mark.parametrize("name", ["", "@cluster", "a:b", "a\nb", "x" * 129])
def test_a_name_that_can_be_no_users_is_refused(name: str) -> None:
    with pytest.raises(OptionError):
        check_name(name)


@pytest.mark.parametrize("password", ["", "x" * 513])
def test_a_password_that_can_be_none_is_refused_and_not_repeated(password: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_password(password)
    assert "xx" not in str(caught.value)
    assert check_password("x") == "x" and check_name("ann") == "ann"


ROOT, READER = read_grants("administer"), read_grants("read")


def of(grants: tuple[Grant, ...], password: str = "secret") -> Account:
    return Account.create(password, grants)


def test_an_account_is_added_changed_and_removed() -> None:
    accounts = {"root": of(ROOT)}
    add_account(accounts, "ann", of(READER))
    keys = accounts["ann"].keys
    change_account(accounts, "ann", grants=ROOT)
    assert (accounts["ann"].grants, accounts["ann"].keys) == (ROOT, keys)
    change_account(accounts, "ann", keys=of((), "another").keys)
    assert accounts["ann"].grants == ROOT
    assert accounts["ann"].keys != keys
    remove_account(accounts, "ann")
    assert list(accounts) == ["root"]


def test_a_user_who_is_there_is_not_added_and_one_who_is_not_is_not_changed() -> None:
    accounts = {"root": of(ROOT)}
    with pytest.raises(WorkRefused, match="there is a user 'root'; change it"):
        add_account(accounts, "root", of(READER))
    for change in (partial(change_account, grants=ROOT), remove_account):
        with pytest.raises(WorkRefused, match="there is no user 'bob'; see: headwater user list"):
            change(accounts, "bob")
    with pytest.raises(OptionError):
        add_account(accounts, "a:b", of(READER))


def test_the_last_administrator_goes_by_force_alone() -> None:
    for change in (remove_account, partial(change_account, grants=READER)):
        with pytest.raises(WorkRefused, match="no user would be left with the role administer"):
            change({"root": of(ROOT)}, "root")
        change({"root": of(ROOT)}, "root", force=True)
    accounts = {"ann": of(READER)}
    remove_account(accounts, "ann")
    assert accounts == {}, "where nobody may do everything, nobody who may is lost"


def test_on_a_list_only_users_who_differ_have_new_revisions() -> None:
    users = on_list(partial(add_account, name="root", account=of(ROOT)))(UserList())
    users = on_list(partial(add_account, name="ann", account=of(READER)))(users)
    before = users.entries["root"].revision
    users = on_list(partial(change_account, name="ann", grants=ROOT))(users)
    assert (users.entries["root"].revision, sorted(accounts_of(users))) == (before, ["ann", "root"])
    assert users.entries["ann"].revision > before
