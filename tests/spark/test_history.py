from headwater.protocol.dcp.position import Position
from headwater.spark.history import BranchHistory, HeldPoints, Point, Resumption, branches, resume

LOG = ((0xB, 200), (0xA, 0))


def test_two_histories_share_what_lies_below_the_next_newer_branch() -> None:
    history = BranchHistory(LOG, 300)
    assert (history.shared_with(0xB), history.shared_with(0xA), history.shared_with(0xC)) == (300, 200, 0)


def test_of_a_uuid_listed_twice_the_oldest_decides() -> None:  # failover 2.1, F50
    assert BranchHistory(((0xA, 250), (0xB, 200), (0xA, 0)), 300).shared_with(0xA) == 200


def test_branches_are_in_the_order_in_which_they_began() -> None:
    assert branches(LOG) == ([0, 200], [0xA, 0xB])


def test_an_unchanged_history_is_simply_continued() -> None:
    assert resume(Position(0, 0xB, 250, 100, 260), BranchHistory(LOG, 300)) == Resumption(250)


def test_the_beginning_can_be_continued_in_any_history() -> None:
    assert resume(Position.beginning(0), BranchHistory(LOG, 300)) == Resumption(0)


def test_changes_above_the_branch_are_lost() -> None:
    position = Position(0, 0xA, 250, 210, 250)
    held = [
        Point(100, 150),
        Point(180, 201),
    ]  # 180 was whole only while the history up to 201 stood: it stands up to 200
    assert resume(position, BranchHistory(LOG, 300), held) == Resumption(100, lost=True)


def test_nothing_delivered_was_lost_but_what_was_left_out_must_be_read_again() -> None:
    position = Position(0, 0xA, 180, 100, 190)
    assert resume(position, BranchHistory(LOG, 300)) == Resumption(100)


def test_a_complete_position_below_the_branch_goes_on_under_the_new_name() -> None:
    assert resume(Position(0, 0xA, 180, 180, 180), BranchHistory(LOG, 300)) == Resumption(180)


def test_without_a_point_that_holds_everything_is_read_again() -> None:
    assert resume(Position(0, 0xA, 250, 100, 250), BranchHistory(LOG, 300)) == Resumption(0, lost=True)
    assert resume(Position(0, 0xC, 250, 250, 250), BranchHistory(LOG, 300)) == Resumption(0, lost=True)


def test_a_remembered_point_spares_the_replay() -> None:
    position = Position(0, 0xA, 180, 100, 190)
    assert resume(position, BranchHistory(LOG, 300), [Point(180, 195)]) == Resumption(180)
    assert resume(position, BranchHistory(LOG, 300), [Point(180, 201)]) == Resumption(100)


def test_who_was_above_0_and_begins_at_0_again_has_lost_what_he_holds() -> None:
    """Nothing of what was delivered is void; but a deletion purged before the replay is read is never told again."""
    assert resume(Position(0, 0xA, 20, 0, 25), BranchHistory(((0xB, 22), (0xA, 0)), 30, 15)) == Resumption(0, lost=True)


def test_after_a_rollback_no_point_below_the_end_of_its_batch_counts() -> None:
    """The changes that replaced the lost branch were read later than any of the points was observed."""
    position = Position(0, 0xA, 180, 100, 190)
    held = [Point(100, 150), Point(180, 195)]
    assert resume(position, BranchHistory(LOG, 300), held, rolled_back=True) == Resumption(180)
    assert resume(position, BranchHistory(LOG, 300), held[:1], rolled_back=True) == Resumption(0, lost=True)
    assert resume(Position(0, 0xB, 250, 100, 250), BranchHistory(LOG, 300), rolled_back=True) == Resumption(250)


def test_points_below_a_rollbacks_batch_are_forgotten() -> None:
    held, log = HeldPoints(), ((0xA, 0),)
    held.record({0: Position(0, 0xA, 50, 0, 60)}, {0: BranchHistory(log, 70)})
    held.record({0: Position(0, 0xA, 80, 40, 90)}, {0: BranchHistory(log, 95)}, frozenset({0}))
    assert held.of(0) == [Point(80, 95)]


def test_a_point_at_the_very_end_of_a_rollback_says_nothing_about_it_either() -> None:
    """Its rows of then were replaced by a reading to 50, which may lack what was overwritten meanwhile."""
    held, old, new = HeldPoints(), ((0xA, 0),), ((0xB, 50), (0xA, 0))
    held.record({0: Position(0, 0xA, 50, 0, 50)}, {0: BranchHistory(old, 50)})
    position, newest = Position(0, 0xB, 50, 50, 50), BranchHistory(((0xC, 50), *new), 50)
    held.record({0: position}, {0: newest}, frozenset({0}))
    assert held.of(0) == []
    assert resume(position, newest, held.of(0), rolled_back=True) == Resumption(0, lost=True)
    held.record({0: position}, {0: BranchHistory(new, 60)}, frozenset({0}))
    held.record({0: position}, {0: BranchHistory(new, 70)}, frozenset({0}))
    assert held.of(0) == [Point(50, 60)]  # but one that was observed after that reading does


def test_a_node_that_shrank_under_one_uuid_lost_changes() -> None:
    assert resume(Position(0, 0xB, 250, 250, 250), BranchHistory(LOG, 240)) == Resumption(0, lost=True)


def test_a_bare_seqno_is_taken_on_trust() -> None:
    assert resume(Position(0, 0, 120, 120, 120), BranchHistory(LOG, 300)) == Resumption(120)


def test_the_first_observation_after_the_reading_counts() -> None:
    held = HeldPoints()
    position = {0: Position(0, 0xA, 50, 0, 60)}
    for high in (70, 90):
        held.record(position, {0: BranchHistory(((0xA, 0),), high)})
    assert held.of(0) == [Point(50, 70)]


def test_a_failover_makes_points_void_that_looked_beyond_the_branch() -> None:
    held = HeldPoints()
    for seqno, high in ((50, 70), (180, 195), (190, 260)):
        held.record({0: Position(0, 0xA, seqno, 0, seqno)}, {0: BranchHistory(((0xA, 0),), high)})
    held.record({0: Position(0, 0xA, 190, 180, 195)}, {0: BranchHistory(LOG, 300)})
    assert held.of(0) == [Point(50, 70), Point(180, 195)]


def test_below_the_purge_seqno_everything_is_read_again() -> None:
    purged = BranchHistory(((0xA, 0),), 300, purge_seqno=150)
    assert resume(Position(0, 0xA, 149, 149, 149), purged) == Resumption(0, lost=True)
    assert resume(Position(0, 0xA, 150, 150, 150), purged) == Resumption(150)
    assert resume(Position.beginning(0), purged) == Resumption(0)


def test_a_batch_that_began_below_the_purge_seqno_is_read_again_unless_it_began_at_the_beginning() -> None:
    purged = BranchHistory(((0xA, 0),), 300, purge_seqno=150)
    assert resume(Position(0, 0xA, 200, 100, 200), purged) == Resumption(0, lost=True)
    assert resume(Position(0, 0xA, 200, 0, 200), purged) == Resumption(200)
