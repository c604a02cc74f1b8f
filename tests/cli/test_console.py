import re
import signal
import sys
import urllib.request
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from headwater import testing

from .support import Run


def test_it_says_where_it_is_and_ends_well_when_told(node: testing.Node, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "console", node.url, "--port", "0"]
    with (tmp_path / "err").open("wb") as err, Popen(command, stdout=PIPE, stderr=err, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        try:
            found = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+/login\?key=[\w-]{32})\n", line)
            assert found, (line, (tmp_path / "err").read_text())
            request = urllib.request.Request(found[1])
            opened = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opened.open(request, timeout=60) as answer:
                assert answer.url.endswith("/")
                assert node.address in answer.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / "err").read_text() == ""


def test_a_refused_login_ends_it_in_one_line(run: Run, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:right\n")
    users.chmod(0o600)
    with testing.node(vbuckets=1, users_file=users) as node:
        status, out, err = run("console", node.url, "--port", "0", "--user", "ann", "--password", "wrong-one")
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "wrong-one" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "0.0.0.0"), "ssh -L"),
        (("--port", "70000"), "65535"),
        (("--name",), "--name"),
    ],
)
def test_what_can_not_be_is_refused(run: Run, node: testing.Node, arguments: tuple[str, ...], told: str) -> None:
    status, _, err = run("console", node.url, *arguments)
    assert status == 2
    assert told in err


def test_a_name_and_a_password_are_given_once(run: Run, node: testing.Node) -> None:
    url = node.url.replace("://", "://ann:secret@")
    status, _, err = run("console", url, "--user", "ann")
    assert status == 2
    assert "secret" not in err


def test_without_its_libraries_it_says_which_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.cli.console.find_spec", lambda name: None if name == "jinja2" else object())
    status, _, err = run("console")
    assert status == 1
    assert "jinja2 is missing" in err
