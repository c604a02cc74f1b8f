"""Storms of text and JSON reach what they are meant for, and leave a node that serves."""

from __future__ import annotations

from pathlib import Path
from random import Random

from harness.attack import word_storms
from harness.attack.guest import Guest
from harness.attack.storms import Place
from headwater import testing
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode


def test_a_request_of_one_path_is_one() -> None:
    frame = Frame.decode(word_storms.subdoc(Opcode.SUBDOC_GET, b"k", b"a.b", b"never sent"))
    assert (frame.opcode, frame.key, frame.extras, frame.value) == (Opcode.SUBDOC_GET, b"k", b"\0\3\0", b"a.b")


def test_a_text_guest_logs_in_where_that_is_done(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("bob:bobs-s3cret\n")
    users.chmod(0o600)
    with testing.node(vbuckets=8, users_file=users) as node:
        place = Place(node.port, 8, Random(1), 0.02, ("bob", "bobs-s3cret"))
        with word_storms.text_guest(place, 60.0) as guest:
            guest.say(b"mn\r\n")
            assert guest.socket.recv(100) == b"MN\r\n"


def test_a_node_serves_after_storms_of_words() -> None:
    with testing.node(vbuckets=8) as node:
        place = Place(node.port, 8, Random(1), 0.02)
        word_storms.text_lines_that_do_not_end(place)
        word_storms.pages_of_strange_requests(place)
        word_storms.json_of_any_depth(place)
        with Guest(node.port) as guest:
            assert guest.settle()
