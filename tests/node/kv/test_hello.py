"""HELLO, buckets, the error map."""

import asyncio
import json
from pathlib import Path

from headwater.node.config import NodeConfig
from headwater.node.kv.hello import GRANTED
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from tests.node.support import Desk, Talk, desk

HELLO, SELECT, LIST, ERROR_MAP = 0x1F, 0x89, 0x87, 0xFE


def test_features_are_granted_once_and_only_those_implemented() -> None:
    assert 0x0E not in GRANTED and {4, 6, 7, 8, 0x0A, 0x0B, 3, 0x0C, 0x12} <= set(GRANTED)


def test_a_hello_in_bytes(talk: Talk) -> None:
    answer = talk.one(HELLO, key=b"capture/1.0", value=bytes.fromhex("000100030004000600070012000a0007"))
    assert answer.value.hex() == "000300040006000700" + "12000a"


def test_every_hello_begins_anew(talk: Talk) -> None:
    talk.hello(7, 4)
    talk.hello(4)
    assert not talk.kv.has(7) and talk.kv.has(4)


def test_an_odd_list_or_a_missing_prerequisite_is_einval(talk: Talk) -> None:
    assert talk.one(HELLO, value=b"\0").status == 4
    talk.hello(7, 0x0B)
    answer = talk.one(HELLO, value=bytes.fromhex("000d"))
    assert answer.status == 4 and "DUPLEX" in json.loads(answer.value)["error"]["context"] and answer.datatype == 1
    assert talk.kv.has(7)


def test_the_bucket_is_selected_by_name(talk: Talk, counter: Desk) -> None:
    talk.hello(7)
    assert talk.one(LIST).value == b"default"
    assert talk.one(SELECT, key=b"other").status == 1
    assert talk.one(SELECT, key=b"@no bucket@").status == 0
    assert talk.one(0, key=b"k").status == 8
    assert talk.one(SELECT, key=b"default").status == 0
    assert talk.one(0, key=b"k").status == 1


def test_without_xerror_no_bucket_is_a_disconnect(talk: Talk) -> None:
    talk.one(SELECT, key=b"")
    talk.ask(0, key=b"k")
    assert talk.connection.is_closed and "0x08" in talk.connection.dropped


def test_the_error_map_is_in_the_highest_common_version(talk: Talk) -> None:
    for asked, version in ((1, 1), (2, 2), (9, 2)):
        found = json.loads(talk.one(ERROR_MAP, value=asked.to_bytes(2, "big")).value)
        assert found["version"] == version and found["errors"]["7"]["name"] == "NOT_MY_VBUCKET"
        assert found["errors"]["86"]["attrs"] == ["temp", "retry-now"]
    assert "rate-limit" not in json.dumps(json.loads(talk.one(ERROR_MAP, value=b"\0\1").value))
    assert talk.one(ERROR_MAP, value=b"\0\0").status == 1
    assert talk.one(ERROR_MAP, value=b"\1").status == 4


def test_a_bucket_that_is_dropped_while_what_was_written_before_settles_is_not_selected(
    counter: Desk, tmp_path: Path
) -> None:
    async def main(orders: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        counter.buckets["orders"] = orders

        async def dropped_meanwhile(gate: int) -> bool:
            del counter.buckets["orders"]
            counter.committer.commit()
            return True

        counter.committer.wait = dropped_meanwhile  # type: ignore[attr-defined]
        talk = counter.session()
        talk.give(Frame(0x80, 0x01, b"k", bytes(8)).encode() + Frame(0x80, SELECT, b"orders").encode())
        while talk.connection.is_paused:
            await asyncio.sleep(0)
        answers = FrameBuffer().receive_data(talk.bytes_sent())
        assert [answer.status for answer in answers] == [0, 1] and talk.kv.bucket is counter.bucket

    with desk(tmp_path / "orders", config=NodeConfig(data=tmp_path / "orders", bucket="orders", vbuckets=4)) as orders:
        asyncio.run(main(orders))
