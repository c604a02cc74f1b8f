"""CONTROL keys: what each value is answered, and what it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.dcp.controls import CONTROLS, ControlSettings, Negotiated, apply, settings_for
from headwater.wire.status import Status

PLAIN = Negotiated()
EVERYTHING = Negotiated(
    snappy=True, collections=True, xattrs=True, delete_times=True, deleted_user_xattrs=True, connection_name="c"
)
OK, EINVAL, NOT_SUPPORTED = Status.SUCCESS, Status.EINVAL, Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("key", "value", "status", "setting", "becomes"),
    [
        ("enable_noop", "true", OK, "enable_noop", True),
        ("enable_noop", "false", OK, "enable_noop", False),
        ("enable_noop", "whatever", OK, "enable_noop", False),
        ("set_noop_interval", "180", OK, "noop_interval_seconds", 180.0),
        ("set_noop_interval", "0.1", OK, "noop_interval_seconds", 0.1),
        ("set_noop_interval", "0.05", EINVAL, "noop_interval_seconds", 20.0),
        ("set_noop_interval", "10801", EINVAL, "noop_interval_seconds", 20.0),
        ("set_noop_interval", "nan", EINVAL, "noop_interval_seconds", 20.0),
        ("set_noop_interval", "-1", EINVAL, "noop_interval_seconds", 20.0),
        ("connection_buffer_size", "65536", OK, "window_bytes", 65536),
        ("connection_buffer_size", "0", OK, "window_bytes", 0),
        ("connection_buffer_size", "4294967295", OK, "window_bytes", 0xFFFF_FFFF),
        ("connection_buffer_size", "4294967296", EINVAL, "window_bytes", 0),
        ("connection_buffer_size", "zzz", EINVAL, "window_bytes", 0),
        ("connection_buffer_size", "-1", EINVAL, "window_bytes", 0),
        ("connection_buffer_size", "1e3", EINVAL, "window_bytes", 0),
        ("stream_buffer_size", "10", NOT_SUPPORTED, "window_bytes", 0),
        ("set_priority", "high", OK, "priority", "high"),
        ("set_priority", "urgent", EINVAL, "priority", "medium"),
        ("backfill_order", "sequential", OK, "backfill_order", "sequential"),
        ("backfill_order", "random", EINVAL, "backfill_order", "round-robin"),
        ("force_value_compression", "true", EINVAL, "force_value_compression", False),
        ("enable_value_compression", "true", OK, "value_compression", True),
        ("enable_value_compression", "false", OK, "value_compression", False),
        ("enable_ext_metadata", "true", OK, "window_bytes", 0),
        ("enable_ext_metadata", "false", OK, "window_bytes", 0),
        ("supports_cursor_dropping", "false", OK, "cursor_dropping", False),
        ("supports_cursor_dropping_vulcan", "true", OK, "cursor_dropping", True),
        ("supports_hifi_MFU", "true", OK, "hifi_mfu", True),
        ("send_stream_end_on_client_close_stream", "true", OK, "stream_end_on_client_close", True),
        ("send_stream_end_on_client_close_stream", "false", OK, "stream_end_on_client_close", False),
        ("enable_expiry_opcode", "true", OK, "expiry_opcode", True),
        ("enable_expiry_opcode", "false", OK, "expiry_opcode", False),
        ("enable_stream_id", "true", EINVAL, "stream_ids", False),
        ("enable_stream_id", "false", EINVAL, "stream_ids", False),
        ("enable_sync_writes", "true", OK, "sync_writes", True),
        ("enable_sync_writes", "false", EINVAL, "sync_writes", False),
        ("consumer_name", "b", OK, "consumer_name", "b"),
        ("enable_out_of_order_snapshots", "true", OK, "out_of_order_snapshots", "true"),
        ("enable_out_of_order_snapshots", "false", EINVAL, "out_of_order_snapshots", ""),
        ("include_deleted_user_xattrs", "true", EINVAL, "window_bytes", 0),
        ("v7_dcp_status_codes", "true", OK, "v7_status_codes", True),
        ("change_streams", "true", OK, "every_version", True),
        ("change_streams", "false", EINVAL, "every_version", False),
        ("max_marker_version", "2.2", NOT_SUPPORTED, "window_bytes", 0),
        ("cache_transfer", "true", NOT_SUPPORTED, "window_bytes", 0),
        ("headwater_purge_seqno", "true", OK, "purge_seqnos", True),
        ("headwater_purge_seqno", "no", OK, "purge_seqnos", False),
        ("headwater_claims", "true", OK, "claims", True),
        ("no_such_control", "x", EINVAL, "window_bytes", 0),
        ("conn", "65536", EINVAL, "window_bytes", 0),
        ("", "true", EINVAL, "window_bytes", 0),
        ("enable_noop", "", EINVAL, "enable_noop", False),
    ],
)
def test_a_plain_connection_sets(key: str, value: str, status: Status, setting: str, becomes: object) -> None:
    settings = settings_for(PLAIN)
    assert apply(settings, PLAIN, key.encode(), value.encode()) is status
    assert getattr(settings, setting) == becomes


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [
        ("force_value_compression", "true", OK),
        ("include_deleted_user_xattrs", "true", OK),
        ("enable_stream_id", "true", OK),
        ("enable_stream_id", "false", EINVAL),
        ("max_marker_version", "2.2", OK),
        ("max_marker_version", "3.0", EINVAL),
    ],
)
def test_what_was_negotiated_before_opens_more(key: str, value: str, status: Status) -> None:
    settings = settings_for(EVERYTHING)
    assert apply(settings, EVERYTHING, key.encode(), value.encode()) is status
    if key == "force_value_compression":
        assert settings.force_value_compression


def test_one_way_switches_stay_on() -> None:
    settings = ControlSettings()
    for value in (b"true", b"false"):
        apply(settings, PLAIN, b"send_stream_end_on_client_close_stream", value)
        apply(settings, EVERYTHING, b"enable_stream_id", value)
    assert settings.stream_end_on_client_close
    assert settings.stream_ids


def test_a_replication_connection_has_cursor_dropping_off_at_first() -> None:
    assert not settings_for(Negotiated(connection_name="replication:a->b:default")).cursor_dropping
    assert settings_for(Negotiated(connection_name="index")).cursor_dropping


def test_every_control_says_what_it_takes() -> None:
    assert all(control.allowed for control in CONTROLS.values())


@given(key=st.sampled_from([key.encode() for key in CONTROLS]) | st.binary(max_size=40), value=st.binary(max_size=40))
def test_any_bytes_are_answered_and_a_refusal_changes_nothing(key: bytes, value: bytes) -> None:
    settings = settings_for(EVERYTHING)
    status = apply(settings, EVERYTHING, key, value)
    assert status is OK or settings == settings_for(EVERYTHING)
