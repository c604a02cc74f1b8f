"""The event of each message of a stream; how streams are found and closed is in test_consumer.py."""

import pytest

from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.consumer_messages import STREAM_MESSAGES
from headwater.protocol.dcp.controls import DELETED_REVS, Negotiated
from headwater.protocol.dcp.events import Advanced, Changed, Ended, ManifestChanged, Marked, StateWanted
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.producer import CONSUMER_COMMANDS
from headwater.wire import dcp, upr
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind, ManifestEvent
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.system_events import flat_message
from headwater.wire.vbucket import State
from tests.protocol.dcp.consumer_talk import VB, Talk, marker, mutation

RETIRED_OR_NOT_AGREED = [
    upr.Flush(vbucket=VB),
    dcp.SystemEvent(vbucket=VB, by_seqno=1, event=3, version=0, manifest_uid=4, scope_id=9),
    dcp.Commit(vbucket=VB, prepared_seqno=1, commit_seqno=2, key=b"k"),
    dcp.OsoSnapshot(vbucket=VB, flags=1),
]


def test_a_marker_a_change_and_a_passed_seqno_are_told_in_their_order() -> None:
    talk = Talk()
    stream = talk.open()
    assert talk.give(marker(stream.opaque, 0, 9)) == [Marked(stream, 0, 9, 1)]
    (changed,) = talk.give(mutation(stream.opaque, 4))
    assert isinstance(changed, Changed)
    assert changed.frame.key == b"k"
    talk.end.applied(changed)
    (advanced,) = talk.give(dcp.SeqnoAdvanced(vbucket=VB, opaque=stream.opaque, seqno=9).frame())
    assert isinstance(advanced, Advanced)
    assert advanced.seqno == 9


def test_an_end_is_told_once_and_another_streams_end_is_passed_over() -> None:
    talk = Talk()
    stream = talk.open()
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque + 1, status=0).frame()) == []
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque, status=2).frame()) == [Ended(stream, 2)]


def test_a_state_is_asked_for_with_the_frame_to_answer() -> None:
    talk = Talk()
    stream = talk.open()
    frame = dcp.SetVbucketState(vbucket=VB, opaque=stream.opaque, state=3).frame()
    (wanted,) = talk.give(frame)
    assert isinstance(wanted, StateWanted)
    assert (wanted.stream, wanted.state) == (stream, State.PENDING)


@pytest.mark.parametrize("message", RETIRED_OR_NOT_AGREED, ids=lambda each: type(each).__name__)
def test_what_was_not_agreed_is_refused_and_not_skipped(message: upr.Flush) -> None:
    talk = Talk()
    stream = talk.open()
    frame = message.frame()
    asked = Frame(frame.magic, frame.opcode, frame.key, frame.extras, frame.value, 0, VB, stream.opaque)
    assert talk.one(asked).status == Status.NOT_SUPPORTED


def test_all_that_a_producer_sends_on_a_stream_has_its_meaning() -> None:
    elsewhere = {Opcode.DCP_ADD_STREAM, Opcode.DCP_NOOP}
    assert set(STREAM_MESSAGES) == (set(CONSUMER_COMMANDS) - elsewhere) | {Opcode.DCP_FLUSH}


@pytest.mark.parametrize(("refused", "history"), [((), False), ((DELETED_REVS,), True)])
def test_a_history_is_that_of_nodes_of_headwater_and_no_other_servers(refused: tuple[str, ...], history: bool) -> None:
    """Another server's flag is about the versions that it keeps; its manifest may say nothing of them."""
    talk = Talk()
    talk.end = Consumer(Negotiated(xerror=True, connection_name="c", collections=True), ConsumerSettings(), now=0.0)
    stream = talk.open(refused=refused)
    talk.give(marker(stream.opaque, 0, 9))
    event = ManifestEvent(EventKind.CREATE_COLLECTION, 4, 0, 8, "carts", None, False)
    text = flat_message(event)
    message = dcp.SystemEventV2(
        vbucket=VB, opaque=stream.opaque, by_seqno=1, event=text.event, key=text.key, value=text.value
    )
    (changed,) = talk.give(message.frame())
    assert isinstance(changed, ManifestChanged)
    assert (changed.event.name, changed.event.history) == ("carts", history)
