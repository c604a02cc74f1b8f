"""docs/reference/rights.md, the doors beside a node's commands and pages: each cell of the console, of certificates and
of files."""

from __future__ import annotations

import http.client
import json
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from headwater import client, testing
from headwater.accounts.roles import ROLES, read_grants
from headwater.accounts.users import Account
from headwater.cli.app import app
from headwater.cli.passwords import password_of
from headwater.client import TlsSettings
from headwater.errors import AuthError, HeadwaterError, NoAccess, OptionError, StorageError
from headwater.node.config import NodeConfig
from headwater.node.connections.tls import NodeTls
from headwater.node.users.file import UsersFile
from headwater.testing.certificates import Certificates
from headwater.testing.node import Node, NodeError
from headwater.tls.making import Pair
from tests.backup.support import fill
from tests.conformance.tables import table
from tests.console.support import Running, running

PAGE: Final = "reference/rights.md"
PASSWORD: Final = "s3cret"
CONSOLE = list(table(PAGE, "Console"))
CERTIFICATES = list(table(PAGE, "Certificates"))
FILES = list(table(PAGE, "Files"))


# --- the console ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def consoles() -> Iterator[dict[str, Running]]:
    """A console for the user of each role."""
    with testing.node(vbuckets=4) as node, ExitStack() as stack:
        node.stop()
        UsersFile(node.data).save({role: Account.create(PASSWORD, read_grants(role)) for role in ROLES})
        node.start()
        with client.connect(node.url, "administer", PASSWORD) as bucket:
            bucket.set("k", "v")
        yield {role: stack.enter_context(running(node.url, role, PASSWORD)) for role in ROLES}


ON_USER = {"name": "nobody", "roles": "read", "password": PASSWORD, "again": PASSWORD, "words": "nobody"}
ASKED = {
    "/documents": {"key": "k"},
    "/documents/value": {"key": "k"},
    "/documents/store": {"key": "k", "cas": "1", "value": "never stored"},
    "/documents/delete": {"key": "k", "cas": "1"},
    "/users/add": ON_USER | {"name": "administer"},
    **dict.fromkeys(("/users/roles", "/users/password", "/users/remove"), ON_USER),
    "/actions/{kind}/plan": {"vbucket": "0", "hours": "1"},
    "/actions/{kind}/begin": {"vbucket": "0", "hours": "1"},
}
"""Questions by page; forms are such that nothing is done: of a version or user that is none, or without a plan."""
PLACES = {"{number:int}": "0", "{kind}": "compaction"}
REFUSED = re.compile(r"EACCESS|The user may not (read|see)")
SHOWS = {"/buckets": '<th scope="row">default</th>', "/collections": '<th scope="row">_default</th>'}
"""Pages that are there for all, with what they have for whoever may do little."""


def answer(made: Running, row: dict[str, str], *, cookie: bool = True) -> tuple[int, str]:
    """The status and the text of a page; of live ones their first news."""
    page = row["page"].strip("`")
    asked, path = ASKED.get(page, {}), page
    for place, sample in PLACES.items():
        path = path.replace(place, sample)
    if cookie and page in EVENTS:
        return 200, EVENTS[page](made)
    line = http.client.HTTPConnection("127.0.0.1", made.server.port, timeout=120)
    headers = {"cookie": made.cookie} if cookie else {}
    try:
        if row["method"] == "POST":
            form = urlencode(asked | {"token": made.server.secrets.token})
            line.request("POST", path, form, headers | {"content-type": "application/x-www-form-urlencoded"})
        else:
            line.request("GET", f"{path}?{urlencode(asked)}", headers=headers)
        found = line.getresponse()
        return found.status, found.read().decode()
    finally:
        line.close()


def _rates(made: Running) -> str:
    with made.events("/rates/events") as events:
        point = next(told for name, told in events if name == "point")
    return "figures" if point["nodes"] else "EACCESS: a point without a node"


def _tail(made: Running) -> str:
    with made.events("/tail/events") as events:
        return json.dumps(next(events))


EVENTS: dict[str, Callable[[Running], str]] = {"/rates/events": _rates, "/tail/events": _tail}


@pytest.mark.parametrize("role", ROLES)
def test_a_console_shows_and_does_what_its_users_role_allows(consoles: dict[str, Running], role: str) -> None:
    wrong = []
    for row in CONSOLE:
        status, text = answer(consoles[role], row)
        told = SHOWS.get(row["page"].strip("`"))
        refused = status == 403 or (REFUSED.search(text) is not None if told is None else told not in text)
        if refused == bool(row[role]) or status in (404, 500):
            wrong.append((row["method"], row["page"], status, text[-300:]))
    assert wrong == [] and len(CONSOLE) > 25


def test_without_its_cookie_a_console_shows_and_does_nothing(consoles: dict[str, Running]) -> None:
    made = consoles["administer"]
    assert {row["page"]: answer(made, row, cookie=False)[0] for row in CONSOLE} == {row["page"]: 401 for row in CONSOLE}


# --- certificates -----------------------------------------------------------------------------------------------------


SHOWN: dict[str, Callable[[Certificates, Path], Pair | None]] = {
    "none": lambda made, folder: None,
    "of a user": lambda made, folder: made.user("ann"),
    "of nobody here": lambda made, folder: made.user("carol"),
    "of `@cluster`": lambda made, folder: made.user("@cluster"),
    "of another CA": lambda made, folder: Certificates(folder / "strange").user("ann"),
    "that has expired": lambda made, folder: made.expired("ann", ()),
}


def outcome(node: Node, files: Pair | None) -> str:
    """How a client with a certificate comes in, in the words of the table."""
    assert node.certificates is not None and node.tls_port is not None
    shown = () if files is None else (str(files.certificate), str(files.key))
    settings = TlsSettings(node.certificates.trust_store, *shown)
    address = f"couchbases://{node.host}:{node.tls_port}/default"
    try:
        with client.connect(address, tls=settings) as bucket:
            assert bucket.stats("rights")["user"] == "ann"
            return "as the user"
    except (AuthError, NoAccess):
        pass
    except HeadwaterError:
        with pytest.raises(HeadwaterError):
            client.connect(address, "ann", PASSWORD, tls=settings)
        return "none"
    with client.connect(address, "ann", PASSWORD, tls=settings) as bucket:
        assert bucket.stats("rights")["user"] == "ann"
    return "by password"


@pytest.mark.parametrize("clients", ["off", "optional", "required"])
def test_a_certificate_lets_in_whom_the_page_says(clients: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{PASSWORD}\n")
    users.chmod(0o600)
    with testing.node(vbuckets=4, tls=True, users_file=users, tls_clients=clients) as node:
        assert node.certificates is not None
        found = {name: outcome(node, shown(node.certificates, tmp_path)) for name, shown in SHOWN.items()}
    assert found == {row["certificate"]: row[clients] for row in CERTIFICATES}


# --- files ------------------------------------------------------------------------------------------------------------


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def is_refused(use: Callable[[], object]) -> str:
    try:
        use()
    except (OptionError, StorageError, NodeError) as error:
        assert "others may read it" in str(error)
        return "refused"
    return "taken"


def secret(folder: Path) -> Path:
    made = folder / "secret"
    made.write_text("ann:s3cret\n")
    made.chmod(0o644)
    return made


def started(**options: object) -> Callable[[], object]:
    def start() -> None:
        with testing.node(vbuckets=1, **options):  # type: ignore[arg-type]
            pass

    return start


def test_files_are_made_and_taken_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = "taken: its folder is closed"
    found: dict[str, tuple[str, str]] = {}
    with testing.node(vbuckets=1) as node:
        fill(node, "a")
        with UsersFile(node.data).editing() as accounts:
            accounts["ann"] = Account.create(PASSWORD, read_grants("administer"))
        folders, files = {mode(node.data)}, {mode(path) for path in node.data.iterdir() if path.is_file()}
        users = mode(node.data / "USERS")
        found["the store's folder, and that of each bucket"] = (*folders, closed)
        found["a file in it"] = (*files, closed)
        node.stop()
        (node.data / "MANIFEST").chmod(0o644)
        node.start()
        node.stop()
        (node.data / "USERS").chmod(0o644)
        found["`USERS`"] = (users, is_refused(node.start))
        (node.data / "USERS").chmod(0o600)
        node.start()
    made = Certificates(tmp_path / "tls")
    config = NodeConfig(tls_certificate=str(made.node.certificate), tls_key=str(made.node.key), tls_ca=made.trust_store)
    found["the certificate beside it"] = (mode(made.node.certificate), is_refused(lambda: NodeTls(config)))
    key = mode(made.node.key)
    made.node.key.chmod(0o644)
    found["the key of `tls ca`, `tls node`, `tls user`"] = (key, is_refused(lambda: NodeTls(config)))
    assert mode(made.folder / "ca.key") == key
    theirs = secret(tmp_path)
    found["`--users-file`"] = ("", is_refused(started(users_file=theirs)))
    ours = tmp_path / "users"
    ours.write_text("ann:s3cret\n")
    ours.chmod(0o600)
    found["`--cluster-secret-file`"] = ("", is_refused(started(users_file=ours, cluster_secret_file=theirs)))
    found["`--password-file`"] = ("", is_refused(lambda: password_of(str(theirs))))
    found |= archives(tmp_path)
    assert found == {row["file"]: (row["made with"], row["read by others"]) for row in FILES}


def archives(folder: Path) -> dict[str, tuple[str, str]]:
    """The rows of a backup and of an export, under the umask of most logins."""
    closed = "taken: its folder is closed"
    place, rows = folder / "backup", folder / "rows.jsonl"
    with testing.node(vbuckets=1) as node:
        fill(node, "a")
        for words in (["backup", "create", place, "--node", node.url], ["export", rows, "--node", node.url]):
            told = CliRunner().invoke(app, list(map(str, words)))
            assert told.exit_code == 0, told.output
    modes = {mode(each) for each in place.rglob("*") if each.is_file()}
    folders = {mode(each) for each in (place, *place.rglob("*")) if each.is_dir()}
    for each in place.rglob("*.json"):
        each.chmod(0o644)
    assert CliRunner().invoke(app, ["backup", "verify", str(place)]).exit_code == 0
    return {
        "a backup's folder": (*folders, closed),
        "a file in a backup": (*modes, closed),
        "an export": (mode(rows), ""),
    }
