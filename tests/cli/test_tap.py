import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater import testing
from headwater.cli.tap import _line, describe
from headwater.client import Mutation
from headwater.client import tap as client
from headwater.protocol.tap.consumer import TapMessage
from headwater.testing.proxy import FaultProxy
from headwater.wire import tap
from tests.cli.support import Run
from tests.client.seeds import refusing_port


def test_messages_are_told_in_a_line_each() -> None:
    flags = int(tap.MessageFlag.NETWORK_BYTE_ORDER)
    messages = [
        tap.Mutation(vbucket=3, key=b"k", value=b"a\nb", flags=flags, item_flags=5),
        tap.Delete(vbucket=3, key=b"k"),
        tap.Opaque(vbucket=3, engine_specific=(8).to_bytes(4)),
        tap.VbucketSet(vbucket=3, engine_specific=(1).to_bytes(4)),
        tap.CheckpointStart(vbucket=3, checkpoint_id=7),
    ]
    assert [_line(message, describe(message), False) for message in messages] == [
        "3 mutation k a\\nb",
        "3 delete k",
        "3 opaque code 8",
        "3 vbucketset state 1",
        "3 checkpointstart checkpoint 7",
    ]


def test_keys_only_has_no_text_and_long_values_are_cut() -> None:
    message = tap.Mutation(vbucket=3, key=b"k", value=b"x" * 200)
    assert "text" not in describe(message, keys_only=True)
    assert _line(message, describe(message), False).endswith("x... (40 bytes more)")
    assert _line(message, describe(message, keys_only=True), True) == "3 mutation k"


def test_a_dump_of_nobody_fails_in_one_line(run: Run) -> None:
    status, out, error = run("tap", "--dump", "--node", f"couchbase://{refusing_port()}/default")
    assert (status, out) == (1, "")
    assert error.startswith("headwater: 127.0.0.1:")
    assert "refused" in error


def test_a_dump_of_an_empty_bucket_prints_nothing_and_succeeds(run: Run) -> None:
    with testing.node(vbuckets=4) as empty:
        assert run("tap", "--dump", "--node", empty.url) == (0, "", "")


def test_a_dump_prints_what_there_is(run: Run, node: testing.Node) -> None:
    with node.client() as writer:
        writer.set("dumped", "text")
    status, out, error = run("tap", "--dump")
    assert (status, error) == (0, "")
    assert " mutation dumped text" in out


def test_a_dump_for_programs_loads_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    documents = {b"plain": b"text", b"k\xff": b"\xff\x00\x80", rb"k\xff": rb"\xff", b"empty": b"", b"json": b'{"a": 1}'}
    saved = tmp_path / "dump.jsonl"
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=8) as target:
        with source.client() as bucket:
            bucket.set_many(documents.items())
        saved.write_text(run("tap", "--dump", "--json", "--node", source.url)[1], "utf-8")
        assert run("load", str(saved), "--format", "changes", "--node", target.url)[0] == 0
        with target.client() as bucket, bucket.changes(until="now") as changes:
            assert {change.key: change.value for change in changes if isinstance(change, Mutation)} == documents


def test_a_stream_of_changes_says_when_a_cut_may_have_cost_it_some(
    run: Run, node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, answers = client.TapStream.__iter__, []
    monkeypatch.setattr(client.TapStream, "__iter__", lambda stream: until(follow(stream), b"last"))
    with FaultProxy(node.address) as proxy, node.client() as writer:
        arguments = ("tap", "--future", "--node", f"couchbase://{proxy.address}/default")
        thread = threading.Thread(target=lambda: answers.append(run(*arguments)))
        wait_for_sessions(node, lambda count: count == 0)  # those of other tests have ended
        thread.start()
        wait_for_sessions(node, lambda count: count > 0)
        proxy.cut()
        deadline = time.monotonic() + 120
        while thread.is_alive() and time.monotonic() < deadline:
            writer.set("last", "1")
            thread.join(0.1)
    ((status, _, error),) = answers
    assert status == 0
    assert "changes of the meantime may be missing" in error


def until(messages: Iterator[TapMessage], key: bytes) -> Iterator[TapMessage]:
    while (message := next(messages, None)) is not None:
        yield message
        if isinstance(message, tap.Mutation) and message.key == key:
            return


def wait_for_sessions(node: testing.Node, enough: Callable[[int], bool]) -> None:
    deadline = time.monotonic() + 120
    with node.client() as reader:
        while not enough(int(reader.stats("tap")["ep_tap_count"])):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_the_help_says_what_a_time_does(run: Run) -> None:
    _, out, _ = run("tap", "--help")
    assert "all or nothing" in " ".join(out.split())
