"""Errors carry their fields, tell numbers and the next step, and survive pickling."""

import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import errors
from headwater.wire.status import Status

EXAMPLES = [
    (
        errors.BadMessage("Mutation", 0x57, "extras are 18 bytes, expected 31"),
        "Mutation (opcode 0x57): extras are 18 bytes, expected 31",
    ),
    (
        errors.BadFrame("a frame starts with byte 0x61, which is no magic"),
        "a frame starts with byte 0x61, which is no magic",
    ),
    (errors.LocalProtocolError("Noop: a key of 1 bytes"), "Noop: a key of 1 bytes"),
    (
        errors.PeerSilent("node:11210", 240.0),
        "node:11210: silent for 240 s; is it a node's port? A reader goes on from its last position",
    ),
    (
        errors.PeerSilent("node:11210", 2.5, 'whether set "k" was stored is not known'),
        'node:11210: silent for 2.5 s; whether set "k" was stored is not known',
    ),
    (errors.NothingCame(1.5), "no change for 1.5 s; ask for the next one to go on waiting, nothing is missed"),
    (errors.ConnectionLost("node:11210", "connection refused"), "node:11210: connection refused"),
    (
        errors.NotMyVbucket('get "k1" (vbucket 7)'),
        'get "k1" (vbucket 7): NOT_MY_VBUCKET (status 0x07): '
        "Another node owns this vbucket; fetch the map again, then retry.",
    ),
    (errors.StatusError("get", 0xA8), "get: VBUUID_NOT_EQUAL (status 0xa8)"),
    (
        errors.RollbackRequired(7, 900, 400, "uuid unknown"),
        "vbucket 7: cannot continue from seqno 900; the node shares our history up to seqno 400 only (uuid unknown). "
        "Go back to the newest complete position at or below it (headwater.client.safe_point), drop what lies after "
        "that, then ask again from there",
    ),
    (
        errors.CorruptStore("/data/1.log", 4096, "checksum differs"),
        "/data/1.log: byte 4096: checksum differs; restore the directory from a copy",
    ),
    (
        errors.DiskFull("/data", 4096),
        "/data: no room for 4096 more bytes; free some space, writing resumes by itself",
    ),
    (
        errors.StoreLocked("/data", "process 12"),
        "/data: process 12 has this store open; stop it, or choose another directory",
    ),
    (
        errors.UnsureFile("/data/USERS", "Input/output error"),
        "/data/USERS: Input/output error, and the file of before could not be put back: the change may be in force "
        "after a restart, if not now; once the disk takes writes, look, and repeat it or take it back",
    ),
    (
        errors.ClusterError("10.0.0.3:11210 does not answer", "start it, then type this again"),
        "10.0.0.3:11210 does not answer; start it, then type this again",
    ),
    (
        errors.WorkRefused("there is no bucket a", "see headwater bucket list"),
        "there is no bucket a; see headwater bucket list",
    ),
    (errors.WorkRefused("there is no shop"), "there is no shop"),
    (errors.MoveError(7, "the source does not answer", "start it"), "vbucket 7: the source does not answer; start it"),
    (errors.NotesError("/undo", "these notes are another query's"), "/undo: these notes are another query's"),
    (errors.TableError("/lake/t", "it has no record"), "/lake/t: it has no record"),
    (errors.UnsupportedTable("/lake/t", "rowTracking"), "/lake/t: rowTracking"),
    (errors.TableChanged("/lake/t", "batch 7"), "/lake/t: batch 7"),
    (
        errors.OutputLost("No space left on device"),
        "the output can't be written: No space left on device; what was done is kept, "
        "and the next run goes on from there",
    ),
    (
        errors.InvariantBroken("vbucket {}: {} rows, room for {}", 7, 20, 16),
        "vbucket 7: 20 rows, room for 16: a rule of headwater's own is broken, and nothing was written or acknowledged "
        "past it; keep the log, report this line, and start again from what is on disk",
    ),
    (
        errors.OptionError("vbuckets", "0-1024", "within 0 to 1023"),
        'option "vbuckets": "0-1024" is not within 0 to 1023',
    ),
]


@pytest.mark.parametrize(("error", "text"), EXAMPLES, ids=lambda each: type(each).__name__)
def test_an_error_tells(error, text):
    assert str(error) == text
    assert isinstance(error, errors.HeadwaterError)


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=lambda each: type(each).__name__)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


@pytest.mark.parametrize("status", [status for status in Status if status], ids=lambda status: status.name)
def test_every_status_has_an_error_with_its_name(status):
    error = errors.error_for(status, "asked")
    assert error.status == status and error.name == status.name
    assert str(error).startswith(f"asked: {status.name} (status 0x{status:02x})")


def test_a_status_is_found_by_its_class():
    assert isinstance(errors.error_for(0x01), errors.KeyNotFound)
    assert type(errors.error_for(0xFF01)) is errors.StatusError
    assert "0xff01" in str(errors.error_for(0xFF01))


def test_what_may_be_tried_again_is_marked():
    assert errors.error_for(Status.ETMPFAIL).retriable and errors.error_for(Status.NOT_MY_VBUCKET).retriable
    assert not errors.error_for(Status.KEY_EEXISTS).retriable


def test_every_error_is_public_and_on_the_page():
    found = {name for name, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)}
    registered = {
        each.__name__ for each in errors.StatusError.registered.values() if each.__module__ == errors.__name__
    }
    assert found - registered == set(errors.__all__) - {"error_for"}


@given(
    st.text(alphabet="ab(:/@ \"'", max_size=40)
    | st.lists(st.sampled_from(["://", "(", "@", "u:p@h", " ", "a"])).map("".join)
)
def test_names_and_passwords_in_addresses_are_not_shown(text: str) -> None:
    assert errors.hide_logins(text) == re.sub(r"[^\s\"'(]*://[^\s\"']*@", "...@", text)


@pytest.mark.parametrize("piece", ["x", "(", "://", "(://", "@", "a://b "])
def test_a_long_text_is_looked_through_once(piece: str) -> None:
    # Some seconds for each thousand characters would be hours here.
    assert len(errors.hide_logins(piece * 1_000_000)) >= 1_000_000
