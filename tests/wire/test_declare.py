"""The classes that declarations become, and that type checkers see them."""

import subprocess
import sys
import textwrap
from dataclasses import FrozenInstanceError, replace

import pytest

from headwater.wire import dcp, meta, tap
from headwater.wire.declare import ANY_STATUS, OPTIONAL, REQUIRED, about
from headwater.wire.header import Magic
from headwater.wire.layout import Request, Response, u16, u32
from headwater.wire.privilege import NONE


class Small(Request, opcode=0x77, privilege=NONE, key=REQUIRED):
    """A message of this test."""

    first: u16 = about("a number")
    second: u32 | None = about("another", default=None)


class Smaller(Small, opcode=0x78):
    """The same under another opcode."""


def test_a_class_becomes_a_table():
    layout = Small.layout
    assert (layout.name, layout.opcode, layout.magic, layout.key) == ("Small", 0x77, Magic.CLIENT_REQUEST, REQUIRED)
    assert [(field.name, field.about, field.optional) for field in layout.fields] == [
        ("first", "a number", False),
        ("second", "another", True),
    ]
    assert sorted(layout.extras.shapes) == [2, 6]


def test_a_subclass_keeps_what_it_does_not_say_anew():
    assert Smaller.layout.fields == Small.layout.fields and Smaller.layout.key is REQUIRED
    assert Smaller(key=b"k", first=1).encode().hex() == "80780001020000000000000300000000" + "00" * 8 + "00016b"
    assert tap.CheckpointEnd.layout.key is OPTIONAL and sorted(tap.CheckpointEnd.layout.extras.shapes) == [8, 16]


def test_a_field_declared_anew_stays_in_its_place():
    names = [field.name for field in dcp.SnapshotMarkerV22.layout.fields]
    assert names[:2] == ["version", "start_seqno"] and names[-1] == "high_prepared_seqno"


def test_a_response_knows_its_status():
    assert dcp.StreamRollback(rollback_seqno=1).status == 0x23 and dcp.StreamResponse.layout.status == 0
    assert dcp.AddStreamResponse.layout.status == ANY_STATUS


def test_a_field_without_a_form_is_a_mistake_of_the_declaration():
    with pytest.raises(TypeError, match="has no form on the wire"):

        class Formless(Response, opcode=0x79):
            """No form."""

            number: int = about("a bare int")


def test_a_forgotten_field_is_a_mistake_at_run_time():
    with pytest.raises(TypeError, match=r"Small: missing field 'first'$"):
        Small(key=b"k")


def test_so_is_a_field_that_it_does_not_have_or_that_is_counted():
    with pytest.raises(TypeError, match=r"Small: unknown field 'frist'$"):
        Small(first=1, frist=1)
    with pytest.raises(TypeError, match="unknown field 'engine_len'"):
        tap.Delete(engine_len=1)


def test_a_message_never_changes():
    message = Small(first=1)
    with pytest.raises(FrozenInstanceError, match=r"Small\.first cannot be changed"):
        message.first = 2
    with pytest.raises(FrozenInstanceError, match=r"Small\.first cannot be deleted"):
        del message.first


def test_messages_of_one_class_with_equal_fields_are_equal():
    message = dcp.StreamEnd(status=1, vbucket=2)
    same = dcp.StreamEnd(vbucket=2, status=1)
    assert message == same and hash(message) == hash(same) and len({message, same}) == 1
    assert message != dcp.StreamEnd(status=2, vbucket=2) and message != object()
    assert Small(first=1) != dcp.StreamEnd(status=1)
    assert replace(message, status=3) == dcp.StreamEnd(status=3, vbucket=2)


def test_a_forgotten_or_mistyped_field_is_a_type_error(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        from headwater.wire import dcp
        dcp.StreamEnd(status=0)
        dcp.StreamEnd()
        dcp.StreamEnd(status="ok")
        dcp.StreamEnd(statu=0)
        dcp.StreamEnd(status=0).status = 1
        """)
    )
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        f"--cache-dir={tmp_path}",
        str(program),
    ]
    told = subprocess.run(mypy, capture_output=True, text=True, check=False).stdout
    assert {int(line.split(":")[-3]) for line in told.splitlines() if ": error: " in line} == {4, 5, 6, 7}, told
    assert 'Missing named argument "status"' in told and "read-only" in told


def test_a_layout_tells_where_its_fields_lie():
    layout = dcp.Mutation.layout
    assert [layout.offset(name) for name in ("by_seqno", "rev_seqno", "flags", "nru")] == [24, 32, 40, 54]
    assert (layout.extras_bytes, layout.extras_struct.format) == (31, ">QQIIIHB")


def test_a_place_that_depends_on_the_message_is_not_told():
    assert Small.layout.offset("second") == 26
    with pytest.raises(TypeError, match="SetWithMeta has no field 'nmeta' whose place is known"):
        meta.SetWithMeta.layout.offset("nmeta")
    with pytest.raises(TypeError, match="no field 'frist'"):
        Small.layout.offset("frist")
    with pytest.raises(TypeError, match="the extras of Small have no one length"):
        _ = Small.layout.extras_struct
    with pytest.raises(TypeError, match="the extras of Connect have no one length"):
        _ = tap.Connect.layout.extras_bytes


def test_extras_of_several_lengths_are_packed_by_the_length_that_is_meant():
    assert meta.SetWithMeta.layout.struct_of(28).format == ">IIQQI"
    with pytest.raises(TypeError, match="the extras of SetWithMeta are never 25 bytes"):
        meta.SetWithMeta.layout.struct_of(25)
