"""System events as messages: every version, both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadMessage
from headwater.wire.dcp import SystemEvent, SystemEventV2
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind, ManifestEvent
from headwater.wire.system_events import (
    event_of,
    flat_message,
    is_expressible,
    old_message,
    oldest_message,
    read_message,
)

UIDS, IDS, TTLS = st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1), st.integers(1, (1 << 31) - 1)
NAMES = st.text("abcXYZ_-%09", min_size=1, max_size=251)
MADE = st.builds(
    ManifestEvent,
    st.sampled_from([EventKind.CREATE_COLLECTION, EventKind.MODIFY_COLLECTION]),
    UIDS,
    IDS,
    IDS,
    NAMES,
    st.none() | TTLS,
    st.booleans(),
)
EVENTS = (
    MADE
    | st.tuples(UIDS, IDS, IDS).map(lambda ids: ManifestEvent(EventKind.DROP_COLLECTION, *ids))
    | st.tuples(UIDS, IDS, NAMES).map(lambda ids: ManifestEvent(EventKind.CREATE_SCOPE, *ids[:2], name=ids[2]))
    | st.tuples(UIDS, IDS).map(lambda ids: ManifestEvent(EventKind.DROP_SCOPE, *ids))
)

# Tables as flatbuffers 25.12 for Python writes them after kv_engine's events.fbs.
MODIFIED = bytes.fromhex(
    "1c00000000000000000012002000140010000c000000000004000b00120000001c000000000000010c00000008000000"
    "0a0000000000000000000000060000006f72646572730000"
)


@given(EVENTS)
def test_an_event_is_the_same_both_ways_in_version_2_and_in_the_oldest_that_tells_it(event: ManifestEvent) -> None:
    for message in (flat_message(event), oldest_message(event)):
        read = read_message(Frame.decode(replace(message, vbucket=3, by_seqno=77).encode()))
        assert (read.by_seqno, event_of(read)) == (77, event)


@given(EVENTS)
def test_an_older_version_lacks_the_history_alone(event: ManifestEvent) -> None:
    if event.kind is EventKind.MODIFY_COLLECTION:
        return
    message = old_message(event)
    assert message.version == (event.max_ttl is not None)
    assert event_of(SystemEvent.decode(message.encode())) == event._replace(history=True)
    assert is_expressible(event) == event.history


def test_a_table_of_the_other_server_is_read() -> None:
    message = SystemEventV2(by_seqno=9, event=5, key=b"orders", value=MODIFIED)
    assert event_of(message) == ManifestEvent(EventKind.MODIFY_COLLECTION, 10, 8, 12, "orders", None, history=True)


@pytest.mark.parametrize(
    "message",
    [
        SystemEventV2(by_seqno=9, event=5, key=b"orders"),
        SystemEventV2(by_seqno=9, event=0, key=b"orders", value=MODIFIED[:40]),
        SystemEventV2(by_seqno=9, event=4, value=b"\xff" * 40),
        SystemEvent(by_seqno=9, event=1, version=0, manifest_uid=4, scope_id=9),
    ],
)
def test_a_message_that_lacks_its_content_is_refused(message: SystemEvent | SystemEventV2) -> None:
    with pytest.raises(BadMessage):
        read_message(message.frame())


def test_a_kind_that_is_not_known_is_refused() -> None:
    frame = SystemEventV2(by_seqno=9, event=5, key=b"orders", value=MODIFIED).frame()
    with pytest.raises(BadMessage):
        read_message(replace(frame, extras=frame.extras[:8] + (6).to_bytes(4) + b"\x02"))
