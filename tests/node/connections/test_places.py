"""Who finds a place on a node that is full: everybody, the pages, members and administrators."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from headwater.node.connections.places import (
    DESCRIPTORS_RESERVED,
    PAGES_RESERVED,
    TRUSTED_PLACES_MIN,
    ConnectionPlaces,
    PlaceKind,
)


class Caller:
    """A connection, as far as its place goes."""

    is_on_trial = False


class Door:
    """A node's places, and how many connections are open."""

    def __init__(self, most: int, *, has_pages: bool = False, has_users: bool = True) -> None:
        self.places = ConnectionPlaces(most, has_pages=has_pages)
        self.has_users = has_users
        self.open_count = 0

    def enter(self, *, has_pages_only: bool = False) -> Any:
        """Let one more in; None if there is no place."""
        kind = self.places.find(self.open_count, has_pages_only=has_pages_only, has_users=self.has_users)
        if kind is None:
            return None
        caller: Any = Caller()
        self.open_count += 1
        if (longest := self.places.take(caller, kind)) is not None:
            self.leave(longest)
        return caller

    def leave(self, caller: Any) -> None:
        self.open_count -= 1
        self.places.leave(caller)

    def log_in(self, caller: Any, *, is_trusted: bool) -> bool:
        """Log in; False if that is the end of the connection."""
        stays = self.places.end_trial(caller, self.open_count, is_trusted=is_trusted)
        if not stays:
            self.leave(caller)
        return stays


def test_beyond_the_limit_an_administrator_stays_and_everybody_else_goes() -> None:
    door = Door(3)
    common = [door.enter() for _ in range(3)]
    assert not any(each.is_on_trial for each in common)
    member, client = door.enter(), door.enter()
    assert member.is_on_trial and client.is_on_trial
    assert door.log_in(member, is_trusted=True) and not member.is_on_trial
    assert not door.log_in(client, is_trusted=False)
    assert door.open_count == 4


def test_who_is_on_trial_gets_a_common_place_that_has_become_free() -> None:
    door = Door(3)
    common = [door.enter() for _ in range(3)]
    client, other = door.enter(), door.enter()
    door.leave(common[0])
    assert door.log_in(client, is_trusted=False)
    assert not door.log_in(other, is_trusted=False)
    assert door.enter().is_on_trial, "three have the common places"


def test_a_members_place_is_none_of_everybodys() -> None:
    door = Door(3)
    common = [door.enter() for _ in range(3)]
    assert door.log_in(door.enter(), is_trusted=True)
    door.leave(common[0])
    assert not door.enter().is_on_trial
    assert door.enter().is_on_trial


def test_silent_strangers_make_room_for_who_comes_after_them() -> None:
    door = Door(1)
    door.enter()
    silent = [door.enter() for _ in range(TRUSTED_PLACES_MIN)]
    member = door.enter()
    assert door.open_count == 1 + TRUSTED_PLACES_MIN, "the first of them went"
    assert door.log_in(member, is_trusted=True) and door.log_in(silent[1], is_trusted=True)


def test_the_places_of_members_have_an_end() -> None:
    door = Door(1)
    door.enter()
    for _ in range(TRUSTED_PLACES_MIN):
        assert door.log_in(door.enter(), is_trusted=True)
    assert door.enter() is None


def test_without_users_nobody_can_prove_anything_and_nothing_is_kept() -> None:
    door = Door(2, has_users=False)
    assert door.enter() and door.enter()
    assert door.enter() is None


def test_the_pages_keep_their_places_whoever_has_the_others() -> None:
    door = Door(1, has_pages=True)
    door.enter()
    for _ in range(TRUSTED_PLACES_MIN):
        assert door.log_in(door.enter(), is_trusted=True)
    assert all(door.enter(has_pages_only=True) for _ in range(PAGES_RESERVED))
    assert door.enter(has_pages_only=True) is None


def test_the_places_of_members_are_within_the_descriptors_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (DESCRIPTORS_RESERVED + 100, 4096))
    door = Door(10_000)
    common = 0
    while not door.enter().is_on_trial:
        common += 1
    assert common == 100 - TRUSTED_PLACES_MIN


def test_calls_of_other_workers_take_no_place_and_have_an_end() -> None:
    places = ConnectionPlaces(2, has_pages=False, workers=3)
    calls: list[Any] = [Caller() for _ in range(4)]
    for call in calls:
        assert places.has_inner_room(has_users=False)
        places.take_inner(call)
    assert not places.has_inner_room(has_users=False), "each of two other workers has two clients at most"
    assert places.find(len(calls) + 1, has_pages_only=False, has_users=False) is PlaceKind.COMMON
    assert places.find(len(calls) + 2, has_pages_only=False, has_users=False) is None
    places.leave(calls[0])
    assert places.has_inner_room(has_users=False)


def test_workers_have_descriptors_for_the_calls_of_all_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (DESCRIPTORS_RESERVED + 100, 4096))
    places = ConnectionPlaces(10_000, has_pages=False, workers=3)
    assert places.find(13, has_pages_only=False, has_users=False) is PlaceKind.COMMON
    assert places.find(14, has_pages_only=False, has_users=False) is None, "100 are seven for each of 14 clients"
