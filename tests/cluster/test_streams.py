from headwater.client.routing import Address
from headwater.cluster import streams

NODE = Address("127.0.0.1", 1)
DCP = {
    "ep_dcp_count": "2",
    "eq_dcpq:a:b:type": "producer",
    "eq_dcpq:a:b:peer": "127.0.0.1:9",
    "eq_dcpq:a:b:num_streams": "2",
    "eq_dcpq:a:b:unacked_bytes": "10",
    "eq_dcpq:a:b:max_buffer_bytes": "100",
    "eq_dcpq:a:b:paused": "true",
    "eq_dcpq:a:b:stream_3_state": "in-memory",
    "eq_dcpq:a:b:stream_3_last_sent_seqno": "7",
    "eq_dcpq:a:b:stream_3_items_remaining": "2",
    "eq_dcpq:a:b:stream_5_state": "backfilling",
    "eq_dcpq:a:b:stream_5_items_remaining": "40",
    "eq_dcpq:in:type": "consumer",
    "eq_dcpq:in:stream_1_state": "reading",
    "eq_dcpq:in:stream_1_last_received_seqno": "9",
}
TAP = {
    "eq_tapq:old:type": "producer",
    "eq_tapq:old:connected": "false",
    "eq_tapq:old:total_backlog_size": "5",
    "eq_tapq:old:vb_filter": "1 2",
}


def test_a_connection_may_have_colons_in_its_name_and_the_worst_comes_first() -> None:
    first, second, third = streams.connections(NODE, DCP, TAP)
    assert (first.name, first.part, first.count, first.backlog, first.worst) == ("a:b", "producer", 2, 42, 40)
    assert (first.unacked, first.window, first.paused, first.peer) == (10, 100, True, "127.0.0.1:9")
    assert [(row.vbucket, row.seqno, row.remaining) for row in first.streams] == [(5, None, 40), (3, 7, 2)]
    assert (second.name, second.dialect, second.count, second.backlog) == ("old", "tap", 2, 5)
    assert second.peer == "waits for its client"
    assert (third.name, third.part, third.backlog, third.worst) == ("in", "consumer", None, None)
    assert third.streams[0].seqno == 9


def test_nothing_told_is_nothing_known() -> None:
    assert streams.connections(NODE, {}, {}) == []
    [row] = streams.connections(NODE, {"eq_dcpq:x:type": "producer"}, {})
    assert (row.count, row.unacked, row.window, row.paused) == (None, None, None, False)


def test_whom_a_node_follows_is_read_and_garbage_is_nobody() -> None:
    [told] = streams.followed({"h:1/b:connected": "true", "h:1/b:connects": "1", "h:1/b:vb_3": "waiting"})
    assert (told.source, told.connected, told.vbuckets) == ("h:1/b", True, {3: "waiting"})
    assert streams.followed({"h:1/b:connects": "many"}) == []
