"""The ledger finds what is wrong with a table of type 1 or 2."""

from harness.auto_cdc.ledger import Ledger, differences, history_of


def seen(*states: dict[str, str]) -> Ledger:
    ledger = Ledger()
    for state in states:
        ledger.now = dict(state)
        ledger.note_update(in_batches=False)
    return ledger


def test_a_history_has_a_gap_where_a_version_ends_before_the_next_begins() -> None:
    assert history_of([("b", (0, 2), None), ("a", (0, 1), (0, 2))]) == ["a", "b"]
    assert history_of([("a", (0, 1), (0, 2)), ("b", (1, 1), (1, 9))]) == ["a", None, "b", None]


def test_tables_that_say_what_was_acknowledged_are_right() -> None:
    ledger = seen({"k": "a"}, {"k": "b"}, {})
    assert not differences(ledger, {}, {"k": [("a", 1, 2), ("b", 2, 3)]})


def test_a_version_too_many_one_missing_and_a_key_that_came_back_are_told() -> None:
    ledger = seen({"k": "a"}, {"k": "b"})
    for rows in ([("a", 1, None)], [("a", 1, 2), ("c", 2, 3), ("b", 3, None)], [("a", 1, 2), ("b", 3, None)]):
        [line] = differences(ledger, {"k": "b"}, {"k": rows})
        assert line.startswith("type 2: k was") and line.endswith("not ['a', 'b']")
    [line] = differences(seen({"k": "a"}, {}), {"k": "a"}, {"k": [("a", 1, 2)]})
    assert line == "type 1: k is a, not None"


def test_an_update_of_several_batches_may_have_seen_what_passed_and_nothing_else() -> None:
    ledger = Ledger()
    ledger.put("k", "a")
    ledger.put("k", None)
    ledger.put("k", "b")
    ledger.note_update(in_batches=True)
    assert ledger.allows("k", ["b"]) and ledger.allows("k", ["a", None, "b"]) and ledger.allows("k", ["a", "b"])
    assert not ledger.allows("k", ["b", "a", "b"]) and not ledger.allows("k", ["c", "b"])
