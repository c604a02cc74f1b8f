"""Write docs/reference/rights.md: which role may send which command and read which page, and which others get access.

`make docs` runs this; tests/test_docs.py fails when the page is stale. tests/conformance/test_rights.py tries each cell
on a node, tests/conformance/test_doors.py those of the console, of certificates and of files.
"""

from collections.abc import Iterator
from pathlib import Path

from headwater.accounts.roles import FINE, ROLES, Grant, granted
from headwater.console.actions import OF_TABLES
from headwater.console.app import SERVED
from headwater.node import server  # noqa: F401  (it registers all commands)
from headwater.node.kv.command import COMMANDS
from headwater.node.kv.rights import rule_of
from headwater.node.rest.pages import PAGES, REFUSED
from headwater.protocol.text import classic, meta
from headwater.protocol.text.commands import steps
from headwater.protocol.text.line import TAKES_DATA, TextCommand
from headwater.wire.dialect import requests
from headwater.wire.layout import Request
from headwater.wire.opcodes import name_of
from headwater.wire.privilege import LOGIN, Beyond, in_words

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "rights.md"
HEAD = """# Rights

Written by `make docs` from the declarations of the requests (`src/headwater/wire/`), of the pages
(`src/headwater/node/rest/pages.py`, `src/headwater/console/app.py`) and of the roles
(`src/headwater/accounts/roles.py`); edit there. On a node without users everybody may do everything.

A user has roles; what a role does not grant is answered with EACCESS (0x24), or with 403 by HTTP, and written to the
log: `user 'bob' may not FLUSH: it needs administer`. As the protocol has it, a client that did not ask for XERROR is
disconnected instead.

"""
COMMANDS_HEAD = """
## Commands

*needs* is what the request declares: `none` is before a login, too, `login` any user. Commands that are not *served*
are answered with NOT_SUPPORTED, whoever asks. A user with several roles may do what any of them may, and what needs two
privileges when they come from two roles.

*in a part* is for users whose roles are for scopes or collections, `read[orders:shop:carts]`: `its collection` goes by
the role for the collection that the key is in, `anywhere` needs the privilege in any part of the bucket, `all buckets`
in every bucket, and where nothing stands the role must be for the whole bucket. A stream goes by what it chooses. Where
a user has no right at all in a collection he is told that there is none: UNKNOWN_COLLECTION (0x88).

"""
PAGES_HEAD = """
## Pages

By HTTP, on the same port; `{}` is the bucket: for who may do nothing at all in it, it is not there (404). Methods that
a page has not are refused with 400 and a reason. What another page in a browser sends changes nothing (403), and a node
without users is called by its address or a name that it knows (421).

"""

CONSOLE_HEAD = """
## Console

`headwater console` asks the nodes as one user, whoever opens it; so what it needs is a right of that user. All of it
wants the cookie that is had by the key which the console printed (401), but for `/login` and `/static/`; what another
page in a browser sends changes nothing (403), and other names than its own are refused (421). *nothing* asks no node,
or leaves out what a node refused; of a bucket the quota is left out without `monitor`.

"""
CERTIFICATES_HEAD = """
## Certificates

A client at the port for TLS, by the certificate that it shows and by `--tls-clients`. *as the user*: it is logged in
without a password. *by password*: it may log in with one, and before that do what needs nothing. *none*: no connection.

"""
CERTIFICATES = (
    ("none", "by password", "by password", "none"),
    ("of a user", "by password", "as the user", "as the user"),
    ("of nobody here", "by password", "by password", "by password"),
    ("of `@cluster`", "by password", "by password", "by password"),
    ("of another CA", "by password", "none", "none"),
    ("that has expired", "by password", "none", "none"),
)
FILES_HEAD = """
## Files

Whoever can read one of these needs no node. *made with* are the rights of what headwater makes, whatever the umask;
*read by others* says what becomes of a file with 0644.

"""
FILES = (
    ("the store's folder, and that of each bucket", "0700", "taken: its folder is closed"),
    ("a file in it", "0600", "taken: its folder is closed"),
    ("`USERS`", "0600", "refused"),
    ("the key of `tls ca`, `tls node`, `tls user`", "0600", "refused"),
    ("the certificate beside it", "0644", "taken"),
    ("`--users-file`", "", "refused"),
    ("`--cluster-secret-file`", "", "refused"),
    ("`--password-file`", "", "refused"),
    ("a backup's folder", "0700", "taken: its folder is closed"),
    ("a file in a backup", "0600", "taken: its folder is closed"),
    ("an export", "0600", ""),
)
OTHERS = """
## Other doors

| door | who comes in | and may |
| --- | --- | --- |
| DCP, UPR, TAP | who has opened one by its command | what its commands need, above; a stream goes by what it chooses |
| another node of the cluster | who proves the members' secret | what `replicate` and `monitor` may, and hear of users |
"""
TEXT_HEAD = """
## Text

The lines of memcached's text protocol, on the same port. A line asks what a command asks, and needs what that needs;
where there are users the first line is a login (`set x 0 0 N`, with a name and a password as its data). Without a right
it is answered with `CLIENT_ERROR access denied`. The role has to be for the default collection, which is all that is
served so.

"""
TEXT = {
    "get": "get k",
    "gets": "gets k",
    "gat": "gat 0 k",
    "gats": "gats 0 k",
    **{name: f"{name} k 0 0 1" for name in ("set", "add", "replace", "append", "prepend")},
    "cas": "cas k 0 0 1 1",
    "delete": "delete k",
    "touch": "touch k 0",
    "incr": "incr k 1",
    "decr": "decr k 1",
    "flush_all": "flush_all 9999999",
    "stats": "stats",
    "version": "version",
    "verbosity": "verbosity 1",
    "mg": "mg k v",
    "ms": "ms k 1",
    "md": "md k",
    "ma": "ma k",
    "me": "me k",
    "mn": "mn",
}
"""A line of each text command, by its name; `quit`, which everybody may send, has no answer."""


def page() -> str:
    """Return the whole page."""
    roles = _table(("role", "privileges"), ((role, in_words(granted([Grant(role)], ""))) for role in ROLES))
    commands = _table(("opcode", "command", "served", "needs", "in a part", *ROLES), _commands())
    pages = _table(("method", "page", "needs", *ROLES), _pages())
    text = _table(("line", "asks", "needs", *ROLES), _lines())
    console = _table(("method", "page", "needs", *ROLES), _console())
    certificates = _table(("certificate", "off", "optional", "required"), iter(CERTIFICATES))
    files = _table(("file", "made with", "read by others"), iter(FILES))
    head = f"{HEAD}{roles}{COMMANDS_HEAD}{commands}{TEXT_HEAD}{text}{PAGES_HEAD}{pages}{CONSOLE_HEAD}{console}"
    return f"{head}{CERTIFICATES_HEAD}{certificates}{FILES_HEAD}{files}{OTHERS}"


def _lines() -> Iterator[tuple[str, ...]]:
    """Yield a row for each text command: the request that its line begins with, and the privilege that this needs."""
    if lacking := {name.decode() for name in (*classic.COMMANDS, *meta.COMMANDS)} - {*TEXT, "quit"}:
        raise LookupError(f"no line of {', '.join(sorted(lacking))}")
    for line in TEXT.values():
        words = tuple(line.encode().split())
        step = next(steps(TextCommand(words, 0, b"x" if words[0] in TAKES_DATA else None), 0))
        opcode = step.layout.opcode if isinstance(step, Request) else None
        needed = 0 if opcode is None else rule_of(opcode).privilege
        name = "nothing" if opcode is None else name_of(opcode)
        yield f"`{line}`", name, in_words(needed) if needed else "none", *_cells(needed)


def _commands() -> Iterator[tuple[str, ...]]:
    """Yield a row for each declared opcode, and one for each case of it that needs a further privilege."""
    for opcode in range(256):
        if not (forms := requests(opcode)):
            continue
        layout, served = forms[0].layout, "yes" if opcode in COMMANDS else ""
        cases: list[Beyond | None] = list(dict.fromkeys(case for form in forms for case in form.layout.beyond))
        for case in cases if cases and layout.privilege is not None and _alone(cases) else [None, *cases]:
            needed = int(layout.privilege or 0) | (case.privilege if case else 0)
            name = f"{name_of(opcode)}, {case.about}" if case else name_of(opcode)
            yield (
                f"0x{opcode:02x}",
                name,
                served,
                in_words(needed) if needed else "none",
                _part(opcode, needed),
                *_cells(needed),
            )


def _part(opcode: int, needed: int) -> str:
    """Return the place within which a role for a part of a bucket may send a request; empty if it may not."""
    found = COMMANDS.get(opcode)
    if found is None or needed <= LOGIN:
        return ""
    places = {"its collection": found.document, "anywhere": found.anywhere, "all buckets": found.of_node}
    is_fine = not needed & ~granted([Grant(role) for role in FINE], None)
    return next((name for name, holds in places.items() if holds and (is_fine or name == "all buckets")), "")


def _alone(cases: list[Beyond | None]) -> bool:
    """Return True if one of the cases always holds, so that the request without a case does not occur."""
    return {0, 1} <= {bool(case.bits) for case in cases if case}


def _pages() -> Iterator[tuple[str, ...]]:
    for each in (*PAGES, *REFUSED):
        methods = ", ".join(method for method in each.methods if method != "HEAD" or each in REFUSED)
        yield methods, f"`{each.path}`", in_words(each.privilege), *_cells(each.privilege)


def _console() -> Iterator[tuple[str, ...]]:
    """Yield a row for each page and form of the console; work in folders of tables needs no privilege on a node."""
    for each in SERVED:
        yield each.method, f"`{each.path}`", in_words(each.needs), *_cells(each.needs)
        if "{kind}" in each.path:
            for kind in sorted(OF_TABLES):
                yield each.method, f"`{each.path.format(kind=kind)}`", "nothing", *_cells(0)


def _cells(needed: int) -> Iterator[str]:
    for role in ROLES:
        yield "" if needed & ~granted([Grant(role)], "") else "yes"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
