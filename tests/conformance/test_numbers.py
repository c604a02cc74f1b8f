"""The numbers in the tables of docs/spec are those of the code, by name, and none is missing on either side."""

from __future__ import annotations

import json
import re
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

from headwater.cluster import transfer
from headwater.node.kv import locking, observe, vbuckets
from headwater.node.streams.handover import TAKEOVER_SECONDS_MAX
from headwater.protocol.dcp import failover, noop, window
from headwater.protocol.dcp.opening import NAME_BYTES_MAX
from headwater.protocol.tap import ledger, producer
from headwater.wire import admin, bootstrap, documents, meta, xattr
from headwater.wire.dialect import messages
from headwater.wire.features import OWN_FEATURES, PREREQUISITES, Feature
from headwater.wire.flags import EndReason, OpenFlag, SnapshotFlag, StreamFlag
from headwater.wire.header import BODY_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from headwater.wire.layout import NO_OPCODE
from headwater.wire.meta import MetaOption
from headwater.wire.opcodes import RETIRED, Opcode
from headwater.wire.status import Status
from headwater.wire.tap import ConnectFlag, MessageFlag, OpaqueCode
from headwater.wire.times import RELATIVE_SECONDS_MAX
from tests.conformance.spec import numbers, quiet_forms, statements

OWN_OPCODES = {Opcode.DCP_BEFORE, Opcode.HOLD_CLOCK}
"""Those that are headwater's own: one is sent to who requests it by a control, one asks for a promise."""
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "failover_vectors.json").read_text("utf-8"))


def plain(name: str) -> str:
    """A name without its remarks: `FLUSH (retired)` is `FLUSH`."""
    return name.partition(" (")[0]


def rows(page: str, section: str, first_cell: str) -> list[list[str]]:
    """Return the cells of those rows of a section whose first cell matches the pattern."""
    found = [
        statement.text.split(" / ")
        for statement in statements(page)
        if statement.section == section and statement.is_row
    ]
    return [cells for cells in found if re.fullmatch(first_cell, cells[0])]


def test_every_opcode_has_the_name_and_the_number_of_the_specification() -> None:
    told = {code: plain(name) for section in ("2.1", "2.2", "2.3") for code, name in numbers("wire", section).items()}
    unnamed = {code for code, name in told.items() if not re.fullmatch(r"[A-Z_]+", name)}
    assert {code: name for code, name in told.items() if code not in unnamed} == {
        int(each): each.name for each in Opcode if each not in OWN_OPCODES
    }
    assert not OWN_OPCODES & told.keys()
    assert unnamed == {0x2C, *range(0x30, 0x3D), *range(0x70, 0x7A), 0xC1, 0xC2, 0xF2, 0xFC, 0xFD, 0xFF}


def test_the_retired_opcodes_are_those_of_the_specification() -> None:
    told = {code for section in ("2.1", "2.3") for code, name in numbers("wire", section).items() if "retired" in name}
    assert told == RETIRED


def test_every_quiet_form_is_declared_with_the_loud_one_that_is_told_beside_it() -> None:
    layouts = [message.layout for module in (admin, bootstrap, documents, meta) for message in messages(module)]
    declared = {layout.quiet: layout.opcode for layout in layouts if layout.quiet != NO_OPCODE}
    assert quiet_forms() == declared


def test_every_status_has_the_name_and_the_number_of_the_specification() -> None:
    assert numbers("wire", "3") == {int(each): each.name for each in Status}


def test_every_feature_has_the_number_of_the_specification_and_needs_what_that_says() -> None:
    told = numbers("wire", "7")
    spelled = {code: squeezed(plain(name).partition(",")[0]) for code, name in told.items()}
    named = {int(each): squeezed(each.name) for each in Feature if each < OWN_FEATURES}
    assert max(told) < OWN_FEATURES
    nameless = {1, 9, 0x16}
    assert {code: spelled[code] for code in set(spelled) - nameless} == {
        code: named[code] for code in set(named) - nameless
    }
    needs = {
        code: {int(each, 16) for each in found[1].split("+")}
        for code, name in told.items()
        if (found := re.search(r"needs ([0-9a-f+]+)", name))
    }
    assert needs == PREREQUISITES


def squeezed(name: str) -> str:
    """A name as neither spelling tells it apart: NO_VALUE and NoValue."""
    return re.sub("[^a-z0-9]", "", name.lower())


@pytest.mark.parametrize(
    ("page", "section", "first_cell", "enum"),
    [
        ("dcp", "2.1", "0x[0-9a-f]+", OpenFlag),
        ("dcp", "2.6", "[0-8]", EndReason),
        ("dcp", "2.7", "0x[0-9a-f]+", SnapshotFlag),
        ("dcp", "3", "0x[0-9a-f]+", StreamFlag),
        ("tap", "1.1", "0x[0-9a-f]+", ConnectFlag),
        ("tap", "3.1", "0x[0-9a-f]+", MessageFlag),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_flag_has_the_name_and_the_bit_of_the_specification(
    page: str, section: str, first_cell: str, enum: type[IntEnum | IntFlag]
) -> None:
    told = {int(cells[0], 0): cells[1] for cells in rows(page, section, first_cell)}
    spoken_of = {bit: squeezed(name) for bit, name in told.items() if not name.startswith("(")}
    assert spoken_of == {int(each): squeezed(str(each.name)) for each in enum}


def test_each_code_of_opaque_is_that_of_the_specification() -> None:
    told = {int(code) for cells in rows("tap", "3.4", r"\d(, \d)?") for code in cells[0].split(", ")}
    assert told == {int(each) for each in OpaqueCode}


def test_each_option_of_with_meta_is_that_of_the_specification() -> None:
    (said,) = (statement.text for statement in statements("kv") if statement.text.startswith("Options: 01 FORCE"))
    assert dict(re.findall(r"(\d\d) ([A-Z_]+)", said)) == {f"{int(each):02x}": each.name for each in MetaOption}


@pytest.mark.parametrize("cells", rows("failover", "2.1", r"F\d\d"), ids=lambda cells: str(cells[0]))
def test_a_vector_of_the_table_is_the_one_of_the_file(cells: list[str]) -> None:
    name, description, table, high, uuid, start, snapshot, extra, expected = cells
    vector = next(each for each in VECTORS if each["id"] == name)
    assert (description, expected) == (vector["description"], vector["expected"])
    assert [(entry["vb_uuid"], entry["seqno"]) for entry in vector["table"]] == [
        (int(each.partition("@")[0], 0), int(each.partition("@")[2])) for each in table.split(", ")
    ]
    assert (int(high), int(uuid, 0), int(start)) == (vector["high_seqno"], vector["vb_uuid"], vector["start_seqno"])
    assert json.loads(snapshot) == [vector["snap_start_seqno"], vector["snap_end_seqno"]]
    assert ("strict" in extra) == vector["strict"]
    told = {found[0]: int(found[1]) for found in re.findall(r"(?:^|, )([a-z ]+) (\d+)", extra)}
    assert told.get("purge", 0) == vector["purge_seqno"]
    assert told.get("remote purge", 0) == vector["remote_purge_seqno"]
    assert told.get("coll high") == vector["collection_high_seqno"]
    assert told.get("end", (1 << 64) - 1) == vector["end_seqno"]


def test_every_vector_of_the_file_stands_in_the_table() -> None:
    assert [cells[0] for cells in rows("failover", "2.1", r"F\d\d")] == [vector["id"] for vector in VECTORS]


@pytest.mark.parametrize(
    ("page", "section", "said", "quantity"),
    [
        ("wire", "1.5", r"packet body / (\d+) MiB", BODY_BYTES_MAX >> 20),
        ("wire", "1.5", r"document value / (\d+) MiB", VALUE_BYTES_MAX >> 20),
        ("wire", "1.5", r"without collections / (\d+) bytes", KEY_BYTES_MAX),
        ("wire", "1.5", r"DCP connection name / (\d+) bytes", NAME_BYTES_MAX),
        ("wire", "9", r"keys are 1-(\d+) bytes", xattr.XATTR_KEY_BYTES_MAX),
        ("wire", "9", r"limited to (\d+) MiB", xattr.SYSTEM_BYTES_MAX >> 20),
        ("wire", "10", r"1\.\.(\d+) \(30 days\)", RELATIVE_SECONDS_MAX),
        ("dcp", "2.13", r"first noop uses opaque (\d+)", noop.OPAQUE_FIRST),
        ("dcp", "4", r"server minimum \(([\d.]+) s today", noop.INTERVAL_SECONDS_MIN),
        ("dcp", "4", r"Default (\d+) s", noop.INTERVAL_SECONDS_DEFAULT),
        ("dcp", "6", r"dcp_idle_timeout \(default (\d+) s\)", noop.IDLE_TIMEOUT_SECONDS),
        ("dcp", "7", r"unacked > (\d+) %", window.ACK_SHARE * 100),
        ("dcp", "7", r"older than (\d+) s", window.ACK_SECONDS_MAX),
        ("failover", "1", r"At most (\d+) entries", failover.ENTRIES_MAX),
        ("failover", "4", r"\((\d+) s since entering takeover-send\)", TAKEOVER_SECONDS_MAX),
        ("failover", "5", r"threshold \((\d+) items\)", transfer.ESTIMATE_MAX),
        ("tap", "3.3", r"interval (\d+) s by default", producer.NOOP_SECONDS),
        ("tap", "4", r"every (\d+)th message", ledger.ACK_INTERVAL),
        ("tap", "4", r"= (\d+) messages beyond", ledger.WINDOW_MESSAGES),
        ("tap", "4", r"grace period \((\d+) s\)", producer.GRACE_SECONDS),
        ("tap", "4", r"back-off of (\d+) s", producer.BACKOFF_SECONDS),
        ("kv", "2", r"0 or absent = (\d+)", locking.SECONDS_DEFAULT),
        ("kv", "2", r"0 or absent = \d+, cap (\d+)", locking.SECONDS_MAX),
        ("kv", "3", r"waits up to (\d+) s", vbuckets.PERSISTENCE_SECONDS_MAX),
        ("kv", "3", r"count \(default (\d+)", observe.KEYS_DEFAULT),
        ("kv", "3", r"count \(default \d+, cap (\d+)", observe.KEYS_MAX),
    ],
)
def test_a_time_or_a_limit_is_that_of_the_specification(page: str, section: str, said: str, quantity: float) -> None:
    texts = [statement.text for statement in statements(page) if statement.section == section]
    told = [float(found[1]) for text in texts for found in re.finditer(said, text)]
    assert told == [pytest.approx(quantity)]
