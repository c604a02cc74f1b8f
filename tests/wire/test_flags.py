"""Flags of DCP messages have the specification's numbers."""

from headwater.wire.flags import EndReason, OpenFlag, SnapshotFlag, StreamFlag


def test_flags_have_the_specifications_bits():
    assert OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES == 0x25
    assert sum(OpenFlag) == 0x36D and sum(StreamFlag) == 0x1F7 and sum(SnapshotFlag) == 0x3F
    assert StreamFlag.FROM_LATEST == 0x40 and SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT == 0x06


def test_a_state_change_ends_with_2():
    assert EndReason.STATE_CHANGED == 2 and len(EndReason) == 9
