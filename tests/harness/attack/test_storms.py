"""Storms are small where they are told to be, and leave a node that serves."""

from __future__ import annotations

import inspect
from random import Random

import pytest

from harness.attack import storms, tls_storms, word_storms
from harness.attack.guest import Guest
from headwater import testing
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import Connect


def test_a_place_scales_and_a_crowd_is_as_large_as_told() -> None:
    with testing.node(vbuckets=4) as node:
        place = storms.Place(node.port, 4, Random(1), 0.1)
        assert (place.some(100), place.some(3), place.some(0)) == (10, 1, 1)
        with place.crowd(30) as guests:
            assert len(guests) == 3 and all(each.settle() for each in guests)
        storms.dcp_open_storm(place)
        with Guest(node.port) as guest:
            assert guest.settle()


@pytest.mark.parametrize("vbuckets", [None, [1, 2]])
def test_a_tap_connect_is_one(vbuckets: list[int] | None) -> None:
    read = Connect.decode(storms.tap_connect(b"n", 2, vbuckets))
    assert (read.key, read.vbuckets) == (b"n", vbuckets)


def takes_a_place_alone(each: object, module: str) -> bool:
    if not inspect.isfunction(each) or each.__module__ != module or inspect.isgeneratorfunction(each):
        return False
    return list(inspect.signature(each).parameters) == ["place"] and each.__annotations__.get("return") == "None"


def test_every_storm_is_in_the_list_and_tells_what_it_does() -> None:
    listed = (*storms.STORMS, *tls_storms.STORMS, *word_storms.STORMS)
    assert all(each.__doc__ for each in listed)
    for module in (storms, tls_storms, word_storms):
        taking = [var for var in vars(module).values() if takes_a_place_alone(var, module.__name__)]
        assert set(taking) == set(module.STORMS)
    assert storms.stream_request(3).opcode == Opcode.DCP_STREAM_REQ
