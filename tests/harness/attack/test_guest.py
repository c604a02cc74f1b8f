"""A guest says anything, marks what was dealt with, and is surprised by nothing."""

from __future__ import annotations

from pathlib import Path

from harness.attack.guest import Guest
from headwater import testing
from headwater.wire.opcodes import Opcode


def test_a_guest_logs_in_reaches_its_marks_and_learns_that_it_was_hung_up_on(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    users.chmod(0o600)
    with testing.node(vbuckets=4, users_file=users) as node, Guest(node.port) as guest:
        assert not guest.log_in("ann", "wrong")
        assert guest.log_in("ann", "secret")
        guest.hello(7)
        answer = guest.ask(Opcode.SET, b"k", bytes(8), b"v")
        assert answer is not None and answer.status == 0
        guest.say(guest.mark() + guest.mark())
        assert guest.reach_mark() and guest.reach_mark() and guest.settle()
        guest.say(b"\x99" * 24)
        assert not guest.settle() and guest.is_gone and guest.hear() is None
