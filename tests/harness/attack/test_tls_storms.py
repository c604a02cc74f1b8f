"""Storms at the port for TLS say what they mean to say, and leave a node that serves by TLS."""

from __future__ import annotations

import ssl
from random import Random

from harness.attack import tls_storms
from harness.attack.storms import Place, trusting_anybody
from headwater import testing


def test_a_client_hello_is_one_record_of_a_handshake() -> None:
    hello = tls_storms.client_hello(trusting_anybody())
    assert hello[0] == tls_storms.HANDSHAKE and int.from_bytes(hello[3:5]) == len(hello) - 5


def test_a_record_claims_what_it_is_told_to() -> None:
    assert tls_storms.record(tls_storms.DATA, b"ab") == b"\x17\x03\x03\x00\x02ab"
    assert tls_storms.record(tls_storms.ALERT, b"", 0xFFFF) == b"\x15\x03\x03\xff\xff"


def test_guests_come_in_by_tls_and_the_node_serves_them_after_storms() -> None:
    with testing.node(vbuckets=8, tls=True) as node:
        place = Place(node.port, 8, Random(1), 0.02, tls_port=node.tls_port or 0)
        tls_storms.tls_garbage(place)
        tls_storms.tls_handshakes_that_are_cut(place)
        tls_storms.plain_bytes_to_the_port_for_tls(place)
        with tls_storms.tls_crowd(place, 100, 60.0) as guests:
            assert len(guests) == 2 and all(guest.settle() for guest in guests)
            assert all(isinstance(guest.socket, ssl.SSLSocket) for guest in guests)
