import pytest

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.protocol.tap.options import TapOptions, read_connect
from headwater.wire.header import Frame
from headwater.wire.status import Status


def connect(extras: str, value: str = "", key: bytes = b"node1") -> Frame:
    return Frame(0x80, 0x40, key, bytes.fromhex(extras), bytes.fromhex(value))


def test_every_option_survives_its_bytes() -> None:
    options = TapOptions(
        name=b"n",
        since=7,
        dump=True,
        vbuckets=(1, 2, 5),
        takeover=True,
        acknowledge=True,
        keys_only=True,
        checkpoints={1: 3, 2: 9},
        registered=True,
        closed_checkpoints_only=True,
        network_byte_order=True,
    )
    assert int(options.flags) == 0x1FF
    assert read_connect(Frame.decode(options.encode())) == options


def test_options_come_in_the_order_of_their_bits() -> None:
    data = TapOptions(name=b"node1", since=5, vbuckets=(0, 1, 2, 3, 4), acknowledge=True, keys_only=True)
    expected = (
        "80400005040000000000001d000000000000000000000000000000356e6f6465310000000000000005000500000001000200030004"
    )
    assert data.encode().hex() == expected


def test_eight_bytes_of_flags_are_read_as_well() -> None:
    read = read_connect(connect("0000000000000001", "00000000ffffffff"))
    assert (read.since, read.name) == (0xFFFF_FFFF, b"node1")


def test_unknown_flags_are_ignored_and_no_extras_mean_no_flags() -> None:
    assert read_connect(connect("80000002")) == TapOptions(name=b"node1", dump=True)
    assert read_connect(connect("")) == TapOptions(name=b"node1")


@pytest.mark.parametrize("age", [0, None, 1_699_999_999])
def test_an_age_in_the_past_is_backfilled(age: int | None) -> None:
    assert TapOptions(since=age).wants_backfill(1_700_000_000)


@pytest.mark.parametrize("age", [0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, 1_700_000_000])
def test_an_age_in_the_future_means_changes_only(age: int) -> None:
    assert not TapOptions(since=age).wants_backfill(1_700_000_000)


def test_other_lengths_of_extras_and_values_without_flags_are_refused() -> None:
    for frame in (connect("0001"), connect("000000000000000001"), connect("", "00")):
        with pytest.raises(BadMessage) as caught:
            read_connect(frame)
        assert caught.value.status == Status.EINVAL


@pytest.mark.parametrize("extras", ["00", "0000", "00000000", "0000000000", "00" * 8, "00" * 32])
def test_zero_bytes_for_extras_are_no_options_whatever_their_number_and_the_value(extras: str) -> None:
    """gotap sends as many zero bytes as its flags are worth; servers of its time read "no flags"."""
    assert read_connect(connect(extras, "000300010002")) == TapOptions(name=b"node1")


def test_a_malformed_list_of_vbuckets_is_not_supported() -> None:
    with pytest.raises(BadMessage) as caught:
        read_connect(connect("00000004", "000300010002"))
    assert caught.value.status == Status.NOT_SUPPORTED


def test_a_body_too_short_for_its_options_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_connect(connect("00000001", "0000"))
    assert not isinstance(caught.value, BadMessage)


def test_takeover_without_a_list_is_none() -> None:
    assert not read_connect(connect("00000008")).takeover


def test_a_name_fits_into_the_keys_of_its_statistics() -> None:
    assert len(read_connect(Frame(0x80, 0x40, b"n" * 250)).name) == 250
    with pytest.raises(BadMessage, match="a name of 251 bytes, 250 are allowed"):
        read_connect(Frame(0x80, 0x40, b"n" * 251))


def test_option_values_of_any_length_are_not_taken_apart() -> None:
    listed = "00000004"
    with pytest.raises(BadMessage, match="16384 are allowed"):
        read_connect(connect(listed, "1fff" + "0005" * 0x1FFF + "00"))
    most = (b"\x04\x00" + b"".join(n.to_bytes(2) for n in range(1024))).hex()
    assert len(read_connect(connect(listed, most)).vbuckets) == 1024
