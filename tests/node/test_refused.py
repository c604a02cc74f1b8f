"""A refusal keeps what the client is to be told."""

from headwater.node.refused import CommandRefused
from headwater.wire.status import Status


def test_a_refusal_has_its_status_and_reason_and_can_carry_a_map() -> None:
    refused = CommandRefused(Status.NOT_MY_VBUCKET, "not here", value=b"{}", datatype=1)
    assert (refused.status, refused.context, refused.value, refused.datatype) == (7, "not here", b"{}", 1)
    assert str(refused) == str((Status.NOT_MY_VBUCKET, "not here"))
