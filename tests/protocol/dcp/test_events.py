"""An event names its vbucket; a refusal says what of its body is for people."""

import pytest

from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.events import Ended, Refused, RollbackNeeded
from headwater.wire.json_text import error_body
from headwater.wire.status import Status


def test_an_event_is_of_its_streams_vbucket() -> None:
    assert Ended(ConsumerStream(7), None).vbucket == 7


@pytest.mark.parametrize(
    ("body", "said"), [(error_body("not served yet"), "not served yet"), (b"in words", "in words"), (b'{"rev":1}', "")]
)
def test_a_refusal_says_what_its_body_has_for_people(body: bytes, said: str) -> None:
    assert Refused(ConsumerStream(7), Status.ETMPFAIL, body).said == said


def test_two_rollbacks_to_one_place_are_the_same_whatever_is_said_of_them() -> None:
    stream = ConsumerStream(7)
    assert RollbackNeeded(stream, 5, "another history") == RollbackNeeded(stream, 5) != RollbackNeeded(stream, 4)
