"""Every vector of failover 1 and 2 (T, F and U), by name, and what the wire makes of the table."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.dcp.failover import (
    Claim,
    Decision,
    Erange,
    FailoverTable,
    KeyEnoent,
    Ok,
    Rollback,
    decide,
    decide_upr,
)
from headwater.wire.records import decode_log

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "failover_vectors.json").read_text(encoding="utf-8")
)
SEED_LOG = "00000000feeddeca00000000000054320000000000decafe000000000134321400000000feedface0000000000000004" + (
    "00000000deadbeef0000000000006524"
)
SEQNOS = st.integers(0, 60)


def fresh() -> Callable[[], int]:
    numbers = count(0x9000)
    return lambda: next(numbers)


def table_at(*seqnos: int, entries_max: int = 25) -> FailoverTable:
    """A table with entries at these seqnos, newest first, under uuids 1, 2, 3 ..."""
    return FailoverTable(enumerate(seqnos, start=1), new_uuid=fresh(), entries_max=entries_max)


def seqnos(table: FailoverTable) -> list[int]:
    return [entry.seqno for entry in table]


def spoken(decision: Decision | KeyEnoent) -> str:
    match decision:
        case Ok():
            return "OK"
        case Rollback(seqno=seqno):
            return f"ROLLBACK {seqno}"
        case Erange():
            return "ERANGE"
        case KeyEnoent():
            return "KEY_ENOENT"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['id']} {vector['description']}")
def test_the_rollback_decision_of(vector: dict[str, Any]) -> None:
    claim = Claim(
        **{name: vector[name] for name in ("start_seqno", "end_seqno", "vb_uuid", "snap_start_seqno", "snap_end_seqno")}
    )
    decision = decide(
        claim,
        [(entry["vb_uuid"], entry["seqno"]) for entry in vector["table"]],
        vector["high_seqno"],
        purge_seqno=vector["purge_seqno"],
        remote_purge_seqno=vector["remote_purge_seqno"],
        strict=vector["strict"],
        collection_high_seqno=vector["collection_high_seqno"],
    )
    assert spoken(decision) == vector["expected"]


@pytest.mark.parametrize(
    ("table", "vb_uuid", "branch_seqno", "start", "expected"),
    [
        pytest.param([(0xA, 0)], 0, 0, 0, "OK", id="U01"),
        pytest.param([(0xA, 0)], 0xA, 0, 300, "OK", id="U02"),
        pytest.param([(0xA, 0)], 0xA, 0, 301, "ROLLBACK 300", id="U03"),
        pytest.param([(0xB, 200), (0xA, 0)], 0xA, 0, 200, "OK", id="U04"),
        pytest.param([(0xB, 200), (0xA, 0)], 0xA, 0, 250, "ROLLBACK 200", id="U05"),
        pytest.param([(0xB, 200), (0xA, 0)], 0xB, 200, 250, "OK", id="U06"),
        pytest.param([(0xB, 200), (0xA, 0)], 0xB, 0, 250, "KEY_ENOENT", id="U07"),
        pytest.param([(0xB, 200), (0xA, 0)], 0xABCD, 0, 10, "KEY_ENOENT", id="U08"),
    ],
)
def test_the_upr_decision_of(
    table: list[tuple[int, int]], vb_uuid: int, branch_seqno: int, start: int, expected: str
) -> None:
    assert spoken(decide_upr(start, vb_uuid, branch_seqno, table, 300)) == expected


@pytest.mark.parametrize(
    ("before", "entries_max", "seqno", "after"),
    [
        pytest.param([500, 400, 300, 200, 100, 0], 25, 199, [199, 100, 0], id="T01"),
        pytest.param([20, 10, 0], 25, 20, [20, 20, 10, 0], id="T02"),
        pytest.param([20, 10, 0], 25, 5, [5, 0], id="T03"),
        pytest.param([40, 30, 20, 10, 0], 5, 50, [50, 40, 30, 20, 10], id="T04"),
    ],
)
def test_create_begins_a_branch(before: list[int], entries_max: int, seqno: int, after: list[int]) -> None:
    table = table_at(*before, entries_max=entries_max)
    assert table.create(seqno) == table.newest == (0x9000, seqno)
    assert seqnos(table) == after


@pytest.mark.parametrize(
    ("seqno", "after", "renewed"),
    [pytest.param(25, [20, 10], False, id="T05"), pytest.param(5, [5], True, id="T06")],
)
def test_prune_forgets_the_branches_above(seqno: int, after: list[int], renewed: bool) -> None:
    table = table_at(30, 20, 10)
    table.prune(seqno)
    assert seqnos(table) == after
    assert (table.newest.vb_uuid == 0x9000) is renewed


def test_a_rollback_to_zero_starts_the_history_over() -> None:
    table = table_at(20, 0)
    table.prune(0)
    assert table.entries == ((0x9000, 0),)


def test_t07_sanitize_drops_uuid_zero_and_entries_above_a_newer_one() -> None:
    table = FailoverTable([(0, 100), (1, 90), (2, 95), (3, 10)], new_uuid=fresh())
    table.sanitize(200)
    assert table.entries == ((1, 90), (3, 10))


def test_t08_replace_leaves_exactly_the_log_of_the_producer() -> None:
    table = table_at(9, 8)
    table.replace([(7, 70), (8, 60), (9, 0)])
    assert table.entries == ((7, 70), (8, 60), (9, 0))


def test_t09_sanitize_of_the_seed_sample_log() -> None:
    table = FailoverTable(decode_log(bytes.fromhex(SEED_LOG)), new_uuid=fresh())
    table.sanitize(0x5432)
    assert table.entries == ((0xFEEDDECA, 0x5432), (0xFEEDFACE, 4))


def test_a_table_of_which_nothing_is_sane_begins_at_the_high_seqno() -> None:
    table = FailoverTable([(0, 0)], new_uuid=fresh())
    table.sanitize(77)
    assert table.entries == ((0x9000, 77),)


def test_a_new_vbucket_has_one_branch_from_zero() -> None:
    assert FailoverTable(new_uuid=fresh()).entries == ((0x9000, 0),)


def test_a_uuid_is_48_bits_and_never_zero_or_known() -> None:
    drawn = iter([0, 5 << 48, 0xFFFF_1234_5678_9ABC, 0x1234_5678_9ABC, 8])
    table = FailoverTable(new_uuid=lambda: next(drawn))
    assert table.newest.vb_uuid == 0x1234_5678_9ABC
    assert table.create(3).vb_uuid == 8


def test_an_empty_log_replaces_nothing() -> None:
    table = table_at(3)
    with pytest.raises(ValueError, match="at least one entry"):
        table.replace([])
    assert seqnos(table) == [3]


def test_the_last_seqno_of_each_branch() -> None:
    table = FailoverTable([(0xB, 200), (0xA, 0)], new_uuid=fresh())
    assert [table.last_seqno_for_uuid(uuid, 300) for uuid in (0xB, 0xA, 0xC)] == [300, 200, None]


def test_the_log_of_the_specification_both_ways() -> None:
    log = bytes.fromhex(SEED_LOG)
    assert FailoverTable(decode_log(log), new_uuid=fresh()).encode() == log
    assert decode_log(log)[1] == (0xDECAFE, 0x1343214)


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (0, "0 rows, at least 1 expected"),
        (8, "at offset 8 of 8"),
        (17, "at offset 16 of 17"),
        (31, "at offset 24 of 31"),
    ],
)
def test_a_log_of_odd_length_is_refused(length: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decode_log(bytes(length))


@given(
    branches=st.lists(SEQNOS, min_size=1, max_size=5).map(lambda found: sorted(found, reverse=True)),
    high=SEQNOS,
    start=SEQNOS,
    before=SEQNOS,
    after=SEQNOS,
    data=st.data(),
)
def test_a_rollback_never_leads_forward_nor_above_the_common_history(
    branches: list[int], high: int, start: int, before: int, after: int, data: st.DataObject
) -> None:
    table = [(uuid, seqno) for uuid, seqno in enumerate(branches, start=1)]
    uuid = data.draw(st.integers(0, len(branches) + 1))
    claim = Claim(start, vb_uuid=uuid, snap_start_seqno=max(0, start - before), snap_end_seqno=start + after)
    match decide(claim, table, high):
        case Rollback(seqno=seqno):
            known = FailoverTable(table, new_uuid=fresh()).last_seqno_for_uuid(uuid, high)
            assert seqno == 0 if known is None else seqno <= min(known, start)
        case Ok():
            assert start <= high or start == 0
        case Erange():
            assert start > high
