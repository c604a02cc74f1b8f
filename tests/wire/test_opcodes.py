"""The numbers of the commands."""

from headwater.wire.opcodes import RETIRED, Opcode, ServerOpcode, name_of


def test_numbers_are_those_of_the_specification():
    assert (Opcode.GET, Opcode.HELLO, Opcode.TAP_CONNECT, Opcode.DCP_OPEN) == (0x00, 0x1F, 0x40, 0x50)
    assert (Opcode.DCP_CACHE_TRANSFER_END, Opcode.GET_FAILOVER_LOG, Opcode.GET_ERROR_MAP) == (0x67, 0x96, 0xFE)
    assert ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION == 1


def test_retired_is_told_from_never_assigned():
    assert Opcode.DCP_FLUSH in RETIRED and 0x30 in RETIRED and 0xEE not in RETIRED


def test_a_number_without_a_name_is_shown():
    assert name_of(0x57) == "DCP_MUTATION" and name_of(0xEE) == "0xee"
