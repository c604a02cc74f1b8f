"""The lines that a node logs about its peers: one each, whatever they call themselves, and never what they keep
secret."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from headwater import testing
from headwater.wire import dcp
from headwater.wire.dcp import OpenFlag
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

NASTY = b"\nERROR forged\r\n\x1b[31m<script>\x00\x9b2J\xff\xfe\xe2\x80\xa8"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [ -~\u00a0-\uffff]+")


def only_lines(log: str) -> None:
    assert (log and "forged" in log) or "listening" not in log
    for line in log.split("\n")[:-1]:
        assert LINE.fullmatch(line), line


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text("alice:s3cret-of-alice\n")
    file.chmod(0o600)
    return file


def test_names_of_any_bytes_stay_on_their_line_in_log_and_stat() -> None:
    with testing.node(vbuckets=2, log_level="debug") as node:
        with Client(node.port) as first, Client(node.port) as second:
            for client in (first, second):  # the second takes the name of the first, which is told of in the log
                client.send(Frame(0x80, Opcode.HELLO, NASTY, value=b"\0\7").encode())
                client.send(dcp.Open(flags=OpenFlag.PRODUCER, opaque=1, key=NASTY).encode())
                assert client.read() is not None and client.read() is not None
            second.send(Frame(0x80, Opcode.STAT, b"dcp").encode())
            while (frame := second.read()) is not None and frame.key:
                assert frame.status == 0
            for opcode in (Opcode.SELECT_BUCKET, Opcode.GET, Opcode.STAT, Opcode.SET_PARAM, Opcode.IOCTL_SET):
                second.send(Frame(0x80, opcode, NASTY, value=NASTY).encode())
        with Client(node.port) as client:
            client.send(b"\n" + NASTY * 3)
            assert client.read() is None
        node.stop()
        only_lines(node.log)
        assert b"\x1b" not in node.log.encode() and "forged" in node.log


def test_no_password_and_no_document_is_ever_written_down(users: Path) -> None:
    right, wrong, document = b"s3cret-of-alice", b"s3cret-guess", b"s3cret-document"
    with testing.node(vbuckets=2, log_level="debug", users_file=users) as node:
        for password in (wrong, right):
            with Client(node.port) as client:
                login = Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0alice\0" + password).encode()
                client.send(login)
                answer = client.read()
                assert answer is not None and (answer.status == 0) == (password == right)
        with Client(node.port) as client:
            client.send(Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0" + NASTY + b"\0" + wrong).encode())
            client.send(Frame(0x80, Opcode.SASL_AUTH, b"SCRAM-SHA256", value=b"n,,n=" + NASTY + wrong).encode())
            client.read()
        with Client(node.port) as client:
            client.send(Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0alice\0" + right).encode())
            client.send(Frame(0x80, Opcode.SELECT_BUCKET, b"default").encode())
            client.send(Frame(0x80, Opcode.SET, b"s3cret-key", bytes(8), document).encode())
            client.send(Frame(0x80, Opcode.SET, b"s3cret-key", bytes(3), document).encode())
            client.send(b"\x80" + document)
            for _ in range(4):
                client.read()
        node.stop()
        only_lines(node.log)
        told = node.log
        assert "login refused" in told
        for secret in (b"s3cret", right, wrong, document):
            for shown in (secret.decode(), secret.hex(), base64.b64encode(secret).decode().rstrip("=")):
                assert shown not in told


def test_a_flood_of_bad_peers_is_a_few_lines_and_a_number() -> None:
    with testing.node(vbuckets=2) as node:
        for _ in range(300):
            with Client(node.port) as client:
                client.send(b"\0" * 24)
                assert client.read() is None
        assert 0 < len(node.log.splitlines()) < 200
