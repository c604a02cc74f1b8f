"""The list of commands: in parts, in the order of a first acquaintance, each with the first paragraph of its help.

`headwater --help` and the completion of the shell show this table. A command itself is made when somebody runs it or
wants its own help: only then are its module, and what that imports, worth their time.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand

from headwater.cli.options import escaped
from headwater.cli.plain_help import FIRST, FOLLOW, INSIDE, OLDER, OPERATE

__all__ = ["LISTED", "ListedCommand", "ListedCommands"]


class ListedCommand(NamedTuple):
    """A command in the list.

    Attributes:
        name: as it is typed.
        place: `module:name` of its function, of the class of its job or work, or of the typer.Typer of its group.
        line: the first paragraph of its help.
        part: of the list (plain_help.py).
    """

    name: str
    place: str
    line: str
    part: str

    def stand_in(self) -> Any:
        """Return a command that a list can show."""
        return TyperCommand(self.name, help=escaped(self.line), rich_help_panel=self.part)

    def command(self) -> Any:
        """Import the command, and make it as the command line has it."""
        from headwater.cli.making import CommandWithForms, command_of

        place, _, name = self.place.partition(":")
        module = import_module(f"headwater.{place}")
        brought = getattr(module, name)
        return command_of(
            self.name,
            brought,
            self.part,
            is_job=isinstance(brought, type),
            text=getattr(module, "HELP", None),
            examples=getattr(module, "EXAMPLES", None),
            kind=getattr(module, "COMMAND", CommandWithForms),
            live=getattr(module, "live", None),
        )


_PARTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    FIRST: (
        ("serve", "cli.serve:serve", "Run a node until Ctrl-C or SIGTERM."),
        (
            "set",
            "cli.set:set_",
            "Store VALUE under KEY and print the new CAS; it is on the disk of its node when the command returns.",
        ),
        (
            "get",
            "cli.get:get",
            "Print the document stored under KEY: into files and pipes byte for byte, on a terminal as text.",
        ),
        ("delete", "cli.delete:delete", "Delete the document stored under KEY and print the CAS of the deletion."),
        (
            "tail",
            "cli.tail:tail",
            "Print every change as it happens: stored, deleted and expired documents, in order within each vbucket.",
        ),
        (
            "load",
            "cli.load:load",
            "Store every row of FILE as a JSON document, or what headwater export wrote as it was.",
        ),
        ("export", "cli.export:export", "Write every document of a bucket to FILE, as it stands now."),
        (
            "console",
            "cli.console:console",
            "Serve the console: a bucket's cluster, streams, documents and mirrors in a browser. Needs the extra "
            "`console`.",
        ),
        (
            "demo",
            "cli.demo.command:demo",
            "Tell a story with real nodes and a mirror, and compare node and table key by key at its end.",
        ),
    ),
    FOLLOW: (
        (
            "mirror",
            "pipelines.jobs:Mirror",
            "Mirror a bucket into a Delta table: each document a row; deletions and rollbacks arrive there too.",
        ),
        ("index", "pipelines.jobs:TextIndex", "Index the text of documents, for `headwater search`."),
        (
            "search",
            "cli.search:search",
            "Find documents: a line with the score, the key and where the words stand, the best first.",
        ),
        (
            "observe",
            "cli.observe:Observer",
            "Count what is written to a bucket in windows of time, by prefix of the key: stores, deletions, "
            "expirations, bytes, and the keys that change most.",
        ),
        (
            "copy",
            "pipelines.jobs:BucketCopy",
            "Copy a bucket into another and keep it level: revision, CAS, expiry and extended attributes stay "
            "as they are.",
        ),
        (
            "invalidate",
            "pipelines.jobs:Invalidation",
            "Delete in a cache what changes in a bucket: keys only, no value leaves a node.",
        ),
        (
            "lake",
            "cli.lake:group",
            "A mirror's table by hand: look at it, fold its files, remove old ones, compare it with the bucket.",
        ),
    ),
    OPERATE: (
        (
            "cluster",
            "cli.cluster.group:group",
            "Several nodes as one bucket: make a cluster, look at it, spread its vbuckets, take a dead node out.",
        ),
        (
            "backup",
            "cli.backup:group",
            "Copies of a bucket in a folder or an object store: made, looked at, written back, removed.",
        ),
        (
            "bucket",
            "cli.bucket:group",
            "The buckets of a node, or of all nodes of its cluster, beside the one that it was started with.",
        ),
        (
            "collection",
            "cli.collection:group",
            "The scopes and collections of a bucket, on one node or on all that are in its cluster.",
        ),
        ("user", "cli.user:group", "Who may log in to a node or to a cluster, and what each may do."),
        (
            "tls",
            "cli.tls:group",
            "A certificate authority of your own, for first steps and tests: `ca` makes it, `node` and `user` "
            "have it sign.",
        ),
        ("config", "cli.config:group", "Look at a file of settings: what is wrong in it, and what counts in the end."),
    ),
    INSIDE: (
        (
            "seqnos",
            "cli.seqnos:seqnos",
            "Print each active vbucket and its high seqno: the number of its newest change, in whatever collection.",
        ),
        (
            "failover-log",
            "cli.failover_log:failover_log",
            "Print a vbucket's failover log, newest branch first: its uuid and the seqno after which it began.",
        ),
        (
            "streams",
            "cli.streams:streams",
            "Show the connections on which changes flow, those that are furthest behind first.",
        ),
    ),
    OLDER: (
        ("tap", "cli.tap:tap", "Print what a node sends over TAP: stored and deleted documents."),
        (
            "replicate",
            "cli.replicate:replicate",
            "Let node B follow node A: its vbuckets become replicas of A's, and B itself calls A for changes.",
        ),
        ("move", "cli.move:move", "Copy vbuckets to another node, or let it take them over."),
        (
            "transition",
            "pipelines.jobs:Transition",
            "Let nodes take over the vbuckets of others, batch by batch, each move checked at both ends and noted.",
        ),
        (
            "failover",
            "cluster.work:PromoteReplicas",
            "Promote the replicas of a node that follows a dead one (`headwater replicate`).",
        ),
    ),
}
LISTED: Final = tuple(ListedCommand(*row, part) for part, rows in _PARTS.items() for row in rows)


class ListedCommands(MutableMapping[str, Any]):
    """The commands by name; each of ours is made when it is looked up, and not by who wants the names."""

    def __init__(self, listed: Iterable[ListedCommand] = LISTED) -> None:
        self._entries: dict[str, Any] = {each.name: each for each in listed}

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        if isinstance(entry, ListedCommand):
            entry = self._entries[name] = entry.command()
        return entry

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command; a KeyError of what is imported does not mean that there is none."""
        return self[name] if name in self else default  # noqa: SIM401 - it is this very method

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __setitem__(self, name: str, command: Any) -> None:
        self._entries[name] = command

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def stand_ins(self) -> dict[str, Any]:
        """Return what a list shows of each: a stand-in where the command was not made."""
        return {
            name: entry.stand_in() if isinstance(entry, ListedCommand) else entry
            for name, entry in self._entries.items()
        }
