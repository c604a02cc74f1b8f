from headwater.client.routing import Address
from headwater.cluster.survey import NodeView, Survey
from headwater.console import figures
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

ONE, TWO, THREE = (Address("127.0.0.1", port) for port in (1, 2, 3))
MAP = ClusterMap("default", "u" * 32, 1, 1, (ONE, TWO, THREE), ((0, 1), (1, 0)), 1)
A, R, D = State.ACTIVE, State.REPLICA, State.DEAD


def view(address: Address, states: dict[int, State], seqnos: dict[int, int] | None = None, error: str = "") -> NodeView:
    return NodeView(address, MAP, states=states, seqnos=seqnos or {}, items=seqnos or {}, error=error)


def survey(*views: NodeView) -> Survey:
    return Survey(MAP, {view.address: view for view in views})


def test_a_vbucket_that_is_as_the_map_says_is_no_trouble() -> None:
    row = figures.vbucket_row(survey(view(ONE, {0: A}, {0: 7}), view(TWO, {0: R}, {0: 5}), view(THREE, {})), 0)
    assert (row.owner, row.replicas, row.seqno, row.items, row.behind, row.trouble) == (ONE, (TWO,), 7, 7, 2, "")
    assert [copy.address for copy in row.copies] == [ONE, TWO]


def test_what_a_silent_node_has_is_not_known_and_not_nothing() -> None:
    row = figures.vbucket_row(survey(view(ONE, {}, error="gone"), view(TWO, {0: R}, {0: 5}), view(THREE, {})), 0)
    assert (row.seqno, row.items, row.behind, row.silent) == (None, None, None, (ONE,))
    assert row.trouble == "127.0.0.1:1 does not answer"


def test_a_silent_replica_leaves_the_lag_unknown() -> None:
    row = figures.vbucket_row(survey(view(ONE, {0: A}, {0: 7}), view(TWO, {}, error="gone"), view(THREE, {})), 0)
    assert (row.seqno, row.behind) == (7, None)


def test_each_way_to_differ_from_the_map_is_said() -> None:
    nobody = figures.vbucket_row(survey(view(ONE, {0: D}), view(TWO, {0: R}), view(THREE, {})), 0)
    assert nobody.trouble == "active nowhere"
    both = figures.vbucket_row(survey(view(ONE, {0: A}), view(TWO, {0: A}), view(THREE, {})), 0)
    assert both.trouble == "active on 127.0.0.1:1, 127.0.0.1:2"
    missing = figures.vbucket_row(survey(view(ONE, {0: A}), view(TWO, {}), view(THREE, {0: R})), 0)
    assert missing.trouble == "127.0.0.1:2: missing, by the map replica; 127.0.0.1:3: replica, by the map none"


def test_the_picture_colours_owners_and_marks_trouble() -> None:
    rows = figures.vbucket_rows(survey(view(ONE, {0: A, 1: R}), view(TWO, {0: R, 1: D}), view(THREE, {})))
    assert figures.owner_classes(rows, MAP.servers) == ["owner0", "trouble"]


def test_pages_have_ends() -> None:
    rows = figures.vbucket_rows(survey(view(ONE, {}), view(TWO, {}), view(THREE, {}))) * 5
    part = figures.paged(rows, 3, 4)
    assert (part.page, part.pages, part.first, part.last, part.total, len(part.rows)) == (3, 3, 9, 10, 10, 2)
    assert figures.paged(rows, 99, 4).page == 3
    assert figures.paged(rows, -1, 4).page == 1
    empty = figures.paged([], 1, 4)
    assert (empty.pages, empty.first, empty.last) == (1, 0, 0)
