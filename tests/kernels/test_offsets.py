"""The places that kernels use, told as numbers of the specification: an independent witness of the declarations."""

from headwater.kernels import offsets


def test_the_header_lies_as_the_specification_says() -> None:
    """wire.md 1."""
    assert (offsets.OPCODE_AT, offsets.KEY_LENGTH_AT, offsets.EXTRAS_LENGTH_AT, offsets.DATATYPE_AT) == (1, 2, 4, 5)
    assert (offsets.VBUCKET_AT, offsets.BODY_LENGTH_AT, offsets.OPAQUE_AT, offsets.CAS_AT) == (6, 8, 12, 16)
    assert (offsets.HEADER, offsets.REQUEST) == (24, 0x80)


def test_changes_lie_as_the_specification_says() -> None:
    """dcp.md 2.8 to 2.10, and 14 for UPR."""
    assert (offsets.MUTATION, offsets.DELETION, offsets.EXPIRATION) == (0x57, 0x58, 0x59)
    assert (offsets.MUTATION_EXTRAS, offsets.UPR_MUTATION_EXTRAS) == (31, 30)
    assert (offsets.DELETION_EXTRAS, offsets.DELETION_V2_EXTRAS, offsets.EXPIRATION_EXTRAS) == (18, 21, 20)
    assert (offsets.SEQNO_AT, offsets.REV_SEQNO_AT, offsets.FLAGS_AT, offsets.EXPIRY_AT) == (24, 32, 40, 44)
    assert (offsets.LOCK_TIME_AT, offsets.NMETA_AT, offsets.NRU_AT) == (48, 52, 54)
    assert (offsets.DELETION_NMETA_AT, offsets.DELETE_TIME_AT, offsets.UNUSED_AT) == (40, 40, 44)
    assert (offsets.REV_SEQNO_IN, offsets.FLAGS_IN, offsets.EXPIRY_IN, offsets.NMETA_IN) == (8, 16, 20, 28)
    assert (offsets.DELETION_NMETA_IN, offsets.DELETE_TIME_IN) == (16, 16)
    assert (offsets.MUTATION_HEAD, offsets.DELETION_HEAD) == (0x8057_0000_1F00_0000, 0x8058_0000_1500_0000)


def test_a_marker_lies_as_the_specification_says() -> None:
    """dcp.md 2.7."""
    assert (offsets.MARKER_HEAD, offsets.MARKER_EXTRAS) == (0x8056_0000_1400_0000, 20)
    assert (offsets.START_AT, offsets.END_AT, offsets.MARKER_FLAGS_AT) == (24, 32, 40)
    assert (offsets.START_IN, offsets.END_IN) == (0, 8)
    assert (offsets.MARKER_V2_EXTRAS, offsets.MARKER_V2_BYTES, offsets.MARKER_V22_BYTES) == (1, 36, 52)


def test_what_takes_a_seqno_without_being_a_change_lies_as_the_specification_says() -> None:
    """dcp.md 2.16 to 2.18."""
    assert (offsets.SEQNO_ADVANCED_EXTRAS, offsets.SYSTEM_EVENT_EXTRAS, offsets.PREPARE_EXTRAS) == (8, 13, 31)
    assert (offsets.COMMIT_EXTRAS, offsets.COMMIT_SEQNO_IN) == (16, 8)


def test_requests_and_answers_lie_as_the_specification_says() -> None:
    """kv.md 2."""
    assert (offsets.SET_EXTRAS, offsets.SET_FLAGS_AT, offsets.SET_EXPIRY_AT) == (8, 24, 28)
    assert (offsets.FOUND_EXTRAS, offsets.FOUND_FLAGS_AT, offsets.STORED_EXTRAS) == (4, 24, 16)


def test_what_a_tap_producer_sends_lies_as_the_specification_says() -> None:
    """tap.md 2."""
    assert (offsets.TAP_EXTRAS, offsets.TAP_MUTATION_EXTRAS) == (8, 16)
    assert (offsets.ENGINE_LENGTH_AT, offsets.TAP_FLAGS_AT, offsets.TTL_AT) == (24, 26, 28)
    assert (offsets.ITEM_FLAGS_AT, offsets.ITEM_EXPIRY_AT) == (32, 36)
