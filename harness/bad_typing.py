"""Run every command with every mistake that a user makes at one time or another:

    python -m harness.bad_typing [--only 'backup create'] [--mistake refused] [--shown FILE]

The commands are those of the app, each with a line that would be right; a mistake changes its words or what is around
it: the login, the address, the vbuckets, the folders, the disk, the terminal, a signal. Each runs in a process of its
own, forked from one that has the command line imported. A command line is reported, and the status is 1, if it ends
with a traceback, takes longer than a minute, succeeds without having done anything, prints more or fewer lines than
one, or leaves a file that looks whole. With --shown all that was printed goes to a file, to be read.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from headwater import testing
from headwater.__main__ import main as command_line
from headwater.cli.app import app

LIMIT_SECONDS: Final = 60.0
SERVES_SECONDS: Final = 30.0
BASE: Final[Mapping[str, str]] = {
    "serve": "--port 0 --data {place}/store",
    "load": "{rows} --key id",
    "export": "{place}/out.csv",
    "get": "k",
    "set": "k v",
    "delete": "k",
    "tail": "--once --positions {place}/positions",
    "tap": "--dump",
    "seqnos": "",
    "failover-log": "0",
    "streams": "",
    "failover": "{other} --from {address} --force --dry-run",
    "mirror": "{url} --to {place}/table --engine local --once --retry 1",
    "index": "{url} {place}/index --engine local --once --retry 1",
    "search": "{place}/index words",
    "observe": "{url} --to {place}/observed --engine local --once --retry 1",
    "replicate": "{address} {other} --once",
    "move": "--from {address} --to {other} --vbuckets 0 --patience 2",
    "transition": "--from {address} --to {other} --journal {place}/journal --engine local --retry 1 --dry-run",
    "console": "{url} --port 0",
    "lake describe": "{place}/table",
    "lake verify": "{place}/table --bucket {url}",
    "lake optimize": "{place}/table",
    "lake vacuum": "{place}/table",
    "lake repair": "{place}/table --dry-run",
    "backup create": "{place}/backups",
    "backup list": "{place}/backups",
    "backup verify": "{place}/backups",
    "backup restore": "{place}/backups",
    "backup prune": "{place}/backups --keep 1",
    "bucket create": "fresh --vbuckets 4",
    "bucket drop": "fresh --yes",
    "bucket list": "",
    "bucket quota": "default",
    "bucket history": "default",
    "collection alter": "shop.orders --history off",
    "collection create": "shop.orders",
    "collection drop": "shop.orders --yes",
    "collection list": "",
    "user add": "bob --roles read --data {place}/users",
    "user list": "--data {place}/users",
    "user roles": "bob read --data {place}/users",
    "user password": "bob --data {place}/users",
    "user remove": "bob --data {place}/users",
    "tls ca": "--dir {place}/tls",
    "tls node": "n1 --host n1.example --dir {place}/tls",
    "tls user": "ann --dir {place}/tls",
    "tls show": "{place}/tls/n1.pem",
    "cluster init": "{address} {other} --dry-run",
    "cluster status": "{address}",
    "cluster rebalance": "{address} --add {other} --yes",
    "cluster failover": "{address} --dead {other} --yes",
    "cluster tls": "{address} --on all",
    "config check": "{place}/node.toml",
    "config show": "{place}/node.toml",
}
"""A correct line for each command; `{place}` stands for an empty folder, and the environment has the node's user."""
LEFT_OUT: Final = {"copy": "Spark", "invalidate": "Spark", "publish": "Kafka", "demo": "Spark"}
ASKS_BY_OPTION: Final = {
    *("load", "export", "get", "set", "delete", "tail", "tap", "seqnos", "failover-log", "streams"),
    *(
        "backup create",
        "backup restore",
        "bucket create",
        "bucket drop",
        "bucket history",
        "bucket list",
        "bucket quota",
    ),
    *("collection alter", "collection create", "collection drop", "collection list"),
}
LONG: Final = ("load", "export", "tail", "tap", "mirror", "index", "observe", "move", "backup create", "streams")


@dataclass(frozen=True)
class Typing:
    """A command line, and its surroundings.

    Attributes:
        words: without `headwater`.
        environment: the whole environment.
        stdin: a file's name, "terminal" for a closed one, None for no standard input at all.
        stdout: a file's name, "pipe", or "broken" for a pipe without a reader.
        stop: the signal that is sent after two seconds; None for none.
        may_end_well: True if status 0 is right, too.
        exact: True to begin it as a shell does; otherwise it is forked from this process, which takes a tenth of the
            time.
    """

    name: str
    words: tuple[str | bytes, ...]
    environment: Mapping[str, str]
    stdin: str | None = os.devnull
    stdout: str = "pipe"
    stop: signal.Signals | None = None
    may_end_well: bool = False
    exact: bool = False


@dataclass
class Around:
    """The surroundings of all command lines: the node, another node, and addresses of peers that are silent, rude or
    closed.
    """

    folder: Path
    node: testing.Node
    other: testing.Node
    silent: str
    rude: str
    closed: str

    def right(self, name: str) -> Typing:
        """Return the correct command line of a command, in a folder of its own."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        (place / "rows.jsonl").write_text('{"id": "a"}\n')
        words = BASE[name].format(
            place=place,
            rows=place / "rows.jsonl",
            url=self.node.url,
            address=self.node.address,
            other=self.other.address,
        )
        kept = {each: text for each, text in os.environ.items() if not each.startswith("HEADWATER_")}
        cache = {"HEADWATER_CACHE": os.environ["HEADWATER_CACHE"]} if "HEADWATER_CACHE" in os.environ else {}
        login = {
            "HEADWATER_NODE": self.node.url,
            "HEADWATER_USER": "ann",
            "HEADWATER_PASSWORD": "right",
            "COLUMNS": "200",
        }
        return Typing(name, (*name.split(), *words.split()), kept | cache | login)

    def place(self, typing: Typing) -> str | None:
        """Return the folder that a command line names; None for none."""
        found = [str(word) for word in typing.words if str(word).startswith(str(self.folder))]
        return str(Path(found[0]).parent) if found else None


Mistake = Callable[[Around, Typing], "Typing | None"]


def _login(*, enough_for: tuple[str, ...] = (), **changed: str) -> Mistake:
    def mistake(around: Around, right: Typing) -> Typing | None:
        if right.name not in ASKS_BY_OPTION and not _addresses(around, right):
            return None
        return replace(right, environment={**right.environment, **changed}, may_end_well=right.name in enough_for)

    return mistake


def _addresses(around: Around, right: Typing) -> bool:
    return any(around.node.address in str(word) for word in right.words)


def _address(told: Callable[[Around], str]) -> Mistake:
    def mistake(around: Around, right: Typing) -> Typing | None:
        theirs = told(around)
        if right.name in ASKS_BY_OPTION:
            return replace(right, environment={**right.environment, "HEADWATER_NODE": f"couchbase://{theirs}/default"})
        if not _addresses(around, right):
            return None
        return replace(right, words=tuple(str(word).replace(around.node.address, theirs) for word in right.words))

    return mistake


def _bucket(around: Around, right: Typing) -> Typing | None:
    url = around.node.url.replace("/default", "/nosuch")
    if right.name in ASKS_BY_OPTION and not right.name.startswith("bucket "):
        return replace(right, environment={**right.environment, "HEADWATER_NODE": url})
    if around.node.url not in right.words or right.name.startswith("bucket "):  # those are not of the address's bucket
        return None
    return replace(right, words=tuple(str(word).replace(around.node.url, url) for word in right.words))


def _vbuckets(text: str) -> Mistake:
    def mistake(around: Around, right: Typing) -> Typing | None:
        if right.name == "failover-log":
            return replace(right, words=("failover-log", text))
        options = {option for param in _commands()[right.name].params for option in param.opts}
        if "--vbuckets" not in options or right.name in {"serve", "bucket create"}:
            return None
        words = [word for at, word in enumerate(right.words) if "--vbuckets" not in (word, right.words[at - 1])]
        return replace(right, words=(*words, "--vbuckets", text))

    return mistake


def _places(told: Callable[[Path], str], *, may_end_well: bool = False) -> Mistake:
    """Return a mistake that replaces each path of the line by `told(path)`."""

    def mistake(around: Around, right: Typing) -> Typing | None:
        if around.place(right) is None:
            return None
        words = tuple(
            told(Path(str(word))) if str(word).startswith(str(around.folder)) and "rows" not in str(word) else word
            for word in right.words
        )
        return None if words == right.words else replace(right, words=words, may_end_well=may_end_well)

    return mistake


def _is_a_file(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine\n")
    return str(path)


def _below_a_file(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "file").write_text("mine\n")
    return str(path.parent / "file" / path.name)


def _is_a_folder_of_others(path: Path) -> str:
    path.mkdir(parents=True)
    (path / "theirs").write_text("theirs\n")
    return str(path)


def _full_disk(around: Around, right: Typing) -> Typing | None:
    place = around.place(right)
    if place is None or "rows" in str(right.words):
        return None
    small = Path(place) / "small"
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True)  # noqa: S603, S607
    with suppress(OSError), (small / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    words = tuple(str(word).replace(place, str(small)) for word in right.words)
    reads = right.name in {"user list", "config show", "config check", "tls show", "transition", "tail", "backup list"}
    return replace(right, words=words, may_end_well=reads)


def _environment(**changed: str | None) -> Mistake:
    def mistake(around: Around, right: Typing) -> Typing | None:
        given = {**right.environment, **{name: text for name, text in changed.items() if text is not None}}
        for name in [name for name, text in changed.items() if text is None]:
            given.pop(name, None)
        return replace(right, environment=given, may_end_well=True, exact=True)

    return mistake


def _around_it(**changed: Any) -> Mistake:
    return lambda around, right: (
        replace(right, exact=True, **changed) if right.name not in ("serve", "console") else None
    )


def _not_text(around: Around, right: Typing) -> Typing | None:
    at = len(right.name.split())
    if len(right.words) <= at or str(right.words[at]).startswith("-"):
        return None
    return replace(right, words=(*right.words[:at], b"\xff\xfe", *right.words[at + 1 :]), may_end_well=True)


def _stopped(number: signal.Signals) -> Mistake:
    def mistake(around: Around, right: Typing) -> Typing | None:
        if right.name not in LONG:
            return None
        waits = _address(lambda around: around.silent)(around, right)
        return None if waits is None else replace(waits, stop=number, exact=True)

    return mistake


S3 = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "x",
}


def _port_taken(around: Around, right: Typing) -> Typing | None:
    """Return the line with a port that is in use: a server's own, or that of a job's metrics; None if it has
    neither.
    """
    port = around.silent.rpartition(":")[2]
    if "--port" in right.words:
        at = right.words.index("--port") + 1
        return replace(right, words=(*right.words[:at], port, *right.words[at + 1 :]))
    options = {option for param in _commands()[right.name].params for option in param.opts}
    return replace(right, words=(*right.words, "--metrics-port", port)) if "--metrics-port" in options else None


READS_STDIN: Final[Mapping[str, tuple[str, ...]]] = {
    "load": ("load", "-", "--format", "jsonl", "--key", "id"),
    "set": ("set", "k", "-"),
    "bucket drop": ("bucket", "drop", "fresh"),
    "collection drop": ("collection", "drop", "shop.orders"),
}


def _terminal_gone(around: Around, right: Typing) -> Typing | None:
    """Return the line with a closed terminal as standard input, reading from it is an error; None for servers.

    A command that can read from standard input does so here.
    """
    words = READS_STDIN.get(right.name, tuple(word for word in right.words if word != "--yes"))
    if right.name in ("serve", "console"):
        return None
    return replace(right, words=words, stdin="terminal", exact=True, may_end_well=True)


def _absent_store(around: Around, right: Typing) -> Typing | None:
    made = _places(lambda path: f"s3://nobody/{path.name}")(around, right)
    return None if made is None else replace(made, environment={**made.environment, **S3})


MISTAKES: Final[Mapping[str, Mistake]] = {
    "wrong password": _login(HEADWATER_PASSWORD="wrong"),  # noqa: S106 - which it is
    "unknown user": _login(HEADWATER_USER="nobody"),
    "missing right": _login(
        HEADWATER_USER="weak", enough_for=("streams", "console", "bucket list", "bucket quota", "collection list")
    ),
    "refused": _address(lambda around: around.closed),
    "silent": _address(lambda around: around.silent),
    "no node": _address(lambda around: around.rude),
    "unknown name": _address(lambda around: "no-such-host.invalid:11210"),
    "no address": _address(lambda around: ""),
    "unknown bucket": _bucket,
    "vbucket beyond": _vbuckets("77"),
    "vbucket impossible": _vbuckets("70000"),
    "vbuckets backwards": _vbuckets("5-2"),
    "vbuckets no number": _vbuckets("x"),
    "file for a folder": _places(_is_a_file),
    "below a file": _places(_below_a_file),
    "folder of others": _places(_is_a_folder_of_others, may_end_well=True),
    "unwritable": _places(lambda path: f"/sys/headwater/{path.name}", may_end_well=True),
    "no such store": _absent_store,
    "full disk": _full_disk,
    "no HOME": _environment(HOME=None),
    "HOME nowhere": _environment(HOME="/nonexistent"),
    "no text": _not_text,
    "stdin closed": _around_it(stdin=None, may_end_well=True),
    "stdout full": _around_it(stdout="/dev/full", may_end_well=True),
    "nobody reads": _around_it(stdout="broken", may_end_well=True),
    "Ctrl-C": _stopped(signal.SIGINT),
    "SIGTERM": _stopped(signal.SIGTERM),
    "SIGHUP": _stopped(signal.SIGHUP),
    "terminal gone": _terminal_gone,
    "nobody to ask": _environment(HEADWATER_PASSWORD=None),
    "port taken": _port_taken,
}
NEEDS_ROOT: Final = {"full disk"}


def _commands() -> dict[str, Any]:
    """Return all commands by their names."""

    def below(command: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, each in command.commands.items():
                yield from below(each, (*above, name))
        else:
            yield " ".join(above), command

    return dict(below(typer.main.get_command(app), ()))


@dataclass
class Ended:
    """The result of a command line."""

    status: int
    stdout: str
    stderr: str
    seconds: float


def run(typing: Typing, folder: Path) -> Ended:
    """Run a command line in a process that is forked from this one, and kill it after LIMIT_SECONDS; return its
    result.
    """
    log, out = folder / "stderr", folder / "stdout"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _become(typing, log, out)
        finally:
            os._exit(70)
    stopped, status = False, None
    while status is None:
        ended, raw = os.waitpid(child, os.WNOHANG)
        gone = time.monotonic() - began
        if ended:
            status = os.waitstatus_to_exitcode(raw)
        elif typing.stop is not None and not stopped and gone > 2:
            os.kill(child, typing.stop)
            stopped = True
        elif typing.name in ("serve", "console") and not stopped and gone > SERVES_SECONDS:
            os.kill(child, signal.SIGTERM)
            stopped = True
        elif gone > LIMIT_SECONDS + 5:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    shown = out.read_text(errors="replace") if typing.stdout == "pipe" else ""
    return Ended(status, shown, log.read_text(errors="replace"), time.monotonic() - began)


def _become(typing: Typing, log: Path, out: Path) -> None:
    """Run the command in this process, as if begun by a shell; never returns."""
    os.setsid()
    os.chdir(out.parent)  # a folder may be made of a name that was meant otherwise
    os.environ.clear()
    os.environ.update(typing.environment)
    sys.argv = ["headwater", *(os.fsdecode(word) for word in typing.words)]
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    if typing.stdout == "broken":
        reads, writes = os.pipe()
        os.close(reads)
        os.dup2(writes, 1)
    else:
        name = out if typing.stdout == "pipe" else typing.stdout
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    if typing.stdin is None:
        os.close(0)
    elif typing.stdin == "terminal":
        master, slave = os.openpty()
        os.dup2(slave, 0)
        os.close(master)
    else:
        os.dup2(os.open(typing.stdin, os.O_RDONLY), 0)
    if typing.exact:
        program = [os.fsencode(word) for word in (sys.executable, "-m", "headwater", *typing.words)]
        os.execve(sys.executable, program, dict(typing.environment))  # noqa: S606 - our own command
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - as Python's own
    try:
        status: Any = command_line()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 0)


def wrong(typing: Typing, ended: Ended) -> list[str]:
    """Return the faults of a result, in words."""
    found = []
    if "Traceback" in ended.stderr or "Traceback" in ended.stdout:
        found.append("a traceback")
    if ended.seconds > LIMIT_SECONDS:
        found.append(f"{ended.seconds:.0f} s")
    # "A node that does not answer is no reason not to begin": the console shows it when it comes.
    waits = typing.name == "console" and "the console shows it when it comes" in ended.stderr
    if ended.status == 0 and not (typing.may_end_well or waits):
        found.append("ended well")
    serves = typing.name in ("serve", "console") and ended.status in (143, -15)
    gave_up = ended.status == 130 and typing.stdin == "terminal"  # it asks, and nobody is there to answer
    if ended.status not in (0, 1, 2) and typing.stop is None and not (gave_up or (serves and typing.may_end_well)):
        found.append(f"status {ended.status}")
    if typing.stop is not None and ended.status != 128 + typing.stop:
        found.append(f"status {ended.status}, expected {128 + typing.stop}")
    told = [line for line in ended.stderr.splitlines() if line.strip()]
    errors = [line for line in told if line.startswith("headwater: ")]
    if ended.status and len(errors) < 1 and typing.stdout != "broken":
        found.append("no line that begins with headwater:")
    progress = [line for line in told if line.startswith(("read: ", "written: ", "backup: ", "restore: "))]
    if len(told) > len(errors) + len(progress) and typing.name != "serve":
        found.append("lines of others")
    return found


@contextmanager
def pretenders() -> Iterator[tuple[str, str]]:
    """Run a peer that accepts connections and sends nothing, and one that sends other bytes, for a block; yield their
    addresses.
    """
    with ExitStack() as stack:
        silent, rude = (stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000)) for _ in range(2))

        child = os.fork()  # no thread: this process is forked once a line
        if child == 0:
            while True:
                peer, _ = rude.accept()
                with peer, suppress(OSError):
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    peer.recv(1000)
        stack.callback(os.waitpid, child, 0)
        stack.callback(os.kill, child, signal.SIGKILL)
        yield f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{rude.getsockname()[1]}"


def main() -> int:
    """Run all commands with all mistakes; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.bad_typing")
    parser.add_argument("--only", default="", help="one command")
    parser.add_argument("--mistake", default="", help="some of the mistakes, with commas between")
    parser.add_argument("--shown", type=Path, help="a file for all that was printed")
    options = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the commands would rightly pass over it
    names = [name for name in _commands() if name not in LEFT_OUT and options.only in ("", name)]
    mistakes = {
        name: mistake for name, mistake in MISTAKES.items() if not options.mistake or name in options.mistake.split(",")
    }
    if os.geteuid() != 0:
        mistakes = {name: mistake for name, mistake in mistakes.items() if name not in NEEDS_ROOT}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-typing-")))
        mounts = f"{folder}/*/small {folder}/*/*/small"
        stack.callback(subprocess.run, f"umount {mounts} 2>/dev/null", shell=True, check=False)  # noqa: S604
        found = _walk(_around(stack, folder), names, mistakes, options.shown)
    print(f"{len(names)} commands, {len(mistakes)} mistakes: {found} are not answered as they should be")
    return int(found > 0)


def _around(stack: ExitStack, folder: Path) -> Around:
    users, weak = folder / "users", folder / "weak"
    users.write_text("ann:right\n")
    weak.write_text("right\n")
    for each in (users, weak):
        each.chmod(0o600)
    node, other = (stack.enter_context(testing.node(vbuckets=16, users_file=users)) for _ in range(2))
    words = ["user", "add", "weak", "--roles", "monitor", "--password-file", str(weak), "--node", node.url]
    login = {"HEADWATER_USER": "ann", "HEADWATER_PASSWORD": "right"}
    by = ["--by", "ann", "--by-password-file", str(weak)]
    subprocess.run([sys.executable, "-m", "headwater", *words, *by], check=True, env=os.environ | login)  # noqa: S603
    silent, rude = stack.enter_context(pretenders())
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    return Around(folder, node, other, silent, rude, address)


def _walk(around: Around, names: list[str], mistakes: Mapping[str, Mistake], shown: Path | None) -> int:
    found = 0
    with (shown or Path(os.devnull)).open("w") as log:
        for name in names:
            for mistake, made in mistakes.items():
                typing = made(around, around.right(name))
                if typing is None:
                    continue
                ended = run(typing, around.folder)
                problems = wrong(typing, ended)
                line = (
                    f"{name} | {mistake} | {ended.status} | {ended.seconds:.1f} s | {' '.join(map(str, typing.words))}"
                )
                log.write(f"{line}\n  {ended.stderr.strip()[-1500:]}\n")
                log.flush()
                if problems:
                    found += 1
                    print(f"{line}\n  {', '.join(problems)}: {ended.stderr.strip()[-400:]}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
