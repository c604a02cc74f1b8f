"""`headwater user`."""

import os
import pty
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.node.users.file import UsersFile


def run(data: Path, *words: str, said: str = "secret\n") -> Any:
    return CliRunner().invoke(app, ["user", *words, "--data", str(data)], input=said)


def test_users_are_added_listed_changed_and_removed(tmp_path: Path) -> None:
    assert run(tmp_path, "add", "root", "--roles", "administer").stdout == "root: administer\n"
    assert run(tmp_path, "add", "ann").exit_code == 0
    assert run(tmp_path, "list").stdout == "ann: read, write, stream, monitor\nroot: administer\n"
    assert run(tmp_path, "roles", "ann", "read:orders").stdout == "ann: read[orders]\n"
    before = UsersFile(tmp_path).load() or {}
    assert run(tmp_path, "password", "ann", said="other\n").stdout == "ann has another password\n"
    after = UsersFile(tmp_path).load() or {}
    assert before["ann"].keys != after["ann"].keys and before["ann"].grants == after["ann"].grants
    assert run(tmp_path, "remove", "ann").stdout == "ann is removed\n"
    assert run(tmp_path, "list").stdout == "root: administer\n"


def test_what_is_not_there_or_is_there_already_is_told_with_a_next_step(tmp_path: Path) -> None:
    missing = run(tmp_path, "list")
    assert (missing.exit_code, "no users were added here" in missing.stderr) == (1, True)
    run(tmp_path, "add", "ann")
    for words in (("remove", "bob"), ("roles", "bob", "read"), ("password", "bob")):
        told = run(tmp_path, *words)
        assert (told.exit_code, "headwater user list" in told.stderr) == (1, True)
    again = run(tmp_path, "add", "ann")
    assert (again.exit_code, "headwater user password" in again.stderr) == (1, True)


def test_roles_names_and_passwords_that_can_not_be_are_refused(tmp_path: Path) -> None:
    for words, said in (
        (("add", "ann", "--roles", "king"), "secret\n"),
        (("add", "ann", "--roles", "read:a:b"), "secret\n"),
        (("add", "@cluster"), "secret\n"),
        (("add", "ann"), "\n"),
    ):
        assert run(tmp_path, *words, said=said).exit_code == 2
    assert not (tmp_path / "USERS").exists()


def test_the_last_administrator_goes_by_force_alone(tmp_path: Path) -> None:
    run(tmp_path, "add", "root", "--roles", "administer")
    for words in (("remove", "root"), ("roles", "root", "read")):
        told = run(tmp_path, *words)
        assert (told.exit_code, "--force" in told.stderr) == (1, True)
    assert run(tmp_path, "remove", "root", "--force").stdout == "root is removed; nobody is left, and nobody comes in\n"


def test_a_password_in_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o644)
    assert run(tmp_path, "add", "ann", "--password-file", str(file)).exit_code == 2
    file.chmod(0o600)
    assert run(tmp_path, "add", "ann", "--password-file", str(file)).exit_code == 0


def test_at_a_terminal_a_password_is_typed_twice_and_not_shown(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "headwater", "user", "add", "ann", "--data", str(tmp_path)])
    shown = b""
    for question in (b"Password of ann: ", b"confirmation: "):
        while question not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"s3cret\n")
    with suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(terminal, 4096):
            shown += piece
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    assert b"s3cret" not in shown and list(UsersFile(tmp_path).load() or {}) == ["ann"]
