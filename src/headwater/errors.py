"""Every error headwater raises, on one page.

    HeadwaterError
    +-- ProtocolError            the rules of the conversation were broken
    |   +-- LocalProtocolError   by us: we were about to send nonsense
    |   +-- RemoteProtocolError  by the peer
    |       +-- BadFrame         the byte stream can't be cut into frames any more: close the connection
    |       +-- BadMessage       one frame is wrong inside: answer `status`, the connection lives on
    +-- TransportError           the connection failed, whatever was said on it
    |   +-- PeerSilent, ConnectionLost
    |   +-- TlsError             TLS could not be agreed on
    |       +-- CertificateRefused   the peer's certificate is not to be trusted
    +-- NothingCame              no change came for as long as the caller wanted to wait
    +-- NotPersisted             too few copies have a change on disk, for as long as the caller wanted to wait
    +-- StatusError              the server answered, and the answer is no (one subclass for each status clients meet)
    +-- RollbackRequired         the histories of the two ends differ
    |   +-- DataLoss             deletions were purged before they were read
    +-- HistoryChanged           a failover or a purge changed what a bounded read was reading
    +-- BucketMadeAnew           the bucket of a request was dropped and made again meanwhile
    +-- CollectionMadeAnew       a collection was dropped and made again while it was written to
    +-- ClusterError             several nodes are not as they must be for what was asked
    |   +-- WorkRefused          the object of an operator's work is not there
    |   +-- MoveError            a vbucket could not be moved from one node to another
    +-- StorageError
    |   +-- CorruptStore, DiskFull, StoreLocked, UnsureFile
    +-- TableError               a table of the lake can't be used as was asked
    |   +-- UnsupportedTable, TableChanged, TableAway
    |   +-- LedgerError          a job's own file can't be used as was asked
    +-- BackupError              an archive of backups can't be used as was asked
    +-- NotesError               the notes of delivered keys can't undo a rollback
    +-- SearchRefused            a search server said no for good
    +-- PublishRefused           Kafka said no for good, or another process publishes there
    +-- RowsRefused              nodes refused rows of a DataFrame for good
    +-- OutputLost               the output of a command can't be written any more
    +-- OptionError              a setting has a value it can't have
    +-- InvariantBroken          a rule of headwater's own does not hold: a fault of ours

Fields come first and are the exception's `args`, so that every error survives pickling (Spark moves them between
processes); the text is made from the fields, with numbers and, where there is one, the next step.
"""

# ruff: noqa: N818 -- names say what happened; "Error" at the end of each would say nothing more

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

__all__ = [
    "BackupError",
    "BadFrame",
    "BadMessage",
    "BucketMadeAnew",
    "BucketNotFound",
    "CatalogAway",
    "CatalogRefused",
    "CertificateRefused",
    "ClusterError",
    "CollectionMadeAnew",
    "ConnectionLost",
    "CorruptStore",
    "DataLoss",
    "DiskFull",
    "HeadwaterError",
    "HistoryChanged",
    "InvariantBroken",
    "LedgerError",
    "LocalProtocolError",
    "MoveError",
    "NotPersisted",
    "NotesError",
    "NothingCame",
    "OptionError",
    "OutputLost",
    "PeerSilent",
    "ProtocolError",
    "PublishRefused",
    "RemoteProtocolError",
    "RollbackRequired",
    "RowsRefused",
    "SearchRefused",
    "StatusError",
    "StorageError",
    "StoreLocked",
    "TableAway",
    "TableChanged",
    "TableError",
    "TlsError",
    "TransportError",
    "UnsupportedTable",
    "UnsureFile",
    "WorkRefused",
    "error_for",
]


class HeadwaterError(Exception):
    """The root: catching it catches all that headwater raises on purpose."""


# --------------------------------------------------------------------------- the conversation


class ProtocolError(HeadwaterError):
    """The peer or the caller broke the rules of the protocol; `problem` says how."""

    def __init__(self, problem: str, *details: object) -> None:
        super().__init__(problem, *details)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class LocalProtocolError(ProtocolError):
    """We were about to break the rules: a mistake of the caller, nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules."""


class BadFrame(RemoteProtocolError):
    """The bytes can't be cut into frames from here on; the only answer is to close the connection."""


class BadMessage(RemoteProtocolError):
    """One frame is whole but wrong inside; a server answers `status` and goes on."""

    def __init__(self, name: str, opcode: int, problem: str, status: int = 0x04) -> None:
        super().__init__(name, opcode, problem, status)
        self.name: str = name
        self.opcode: int = opcode
        self.problem: str = problem
        self.status: int = status

    def __str__(self) -> str:
        return f"{self.name} (opcode 0x{self.opcode:02x}): {self.problem}"


# --------------------------------------------------------------------------- the connection


class TransportError(HeadwaterError):
    """The connection failed, whatever was said on it."""

    retriable: ClassVar[bool] = True


class PeerSilent(TransportError):
    """Nothing came from the peer for `quiet_seconds`: it is taken for dead.

    Attributes:
        outcome: that nobody knows whether a write was stored, and what to do; empty for anything but writes.
    """

    def __init__(self, peer: str, quiet_seconds: float, outcome: str = "") -> None:
        super().__init__(peer, quiet_seconds, outcome)
        self.peer: str = peer
        self.quiet_seconds: float = quiet_seconds
        self.outcome: str = outcome

    def __str__(self) -> str:
        outcome = self.outcome or "is it a node's port? A reader goes on from its last position"
        return f"{self.peer}: silent for {self.quiet_seconds:.3g} s; {outcome}"


class ConnectionLost(TransportError):
    """The connection to `peer` could not be made, or broke."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer: str = peer
        self.reason: str = reason

    def __str__(self) -> str:
        return f"{self.peer}: {self.reason}"


class CatalogAway(ConnectionLost):
    """A catalog of Iceberg does not answer, or not as it should; the table in its folder is whole."""


class TlsError(TransportError):
    """TLS with `peer` could not be agreed on, or broke; `code`: OpenSSL's number for why a certificate was refused."""

    def __init__(self, peer: str, reason: str, code: int = 0) -> None:
        super().__init__(peer, reason, code)
        self.peer: str = peer
        self.reason: str = reason
        self.code: int = code

    def __str__(self) -> str:
        return f"{self.peer}: {self.reason}"


class CertificateRefused(TlsError):
    """The peer's certificate is not to be trusted; the message names it and the reason. Another attempt changes
    nothing.
    """

    retriable = False


class NothingCame(HeadwaterError, TimeoutError):
    """No change came for the `max_wait_seconds` that the caller wanted to wait; the next call goes on waiting."""

    def __init__(self, waited_seconds: float) -> None:
        super().__init__(waited_seconds)
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return f"no change for {self.waited_seconds:g} s; ask for the next one to go on waiting, nothing is missed"


class NotPersisted(HeadwaterError):
    """Too few copies of a vbucket have its changes on disk (`min_persisted`), and the others make no progress.

    Attributes:
        vbucket, seqno: the change that must be on disk. copies: how many copies have it, and how many must have it.
        waited_seconds: the time for which the changes have waited. answers: those of the copies.
    """

    def __init__(self, vbucket: int, seqno: int, copies: tuple[int, int], waited_seconds: float, answers: str) -> None:
        super().__init__(vbucket, seqno, copies, waited_seconds, answers)
        self.vbucket: int = vbucket
        self.seqno: int = seqno
        self.copies: tuple[int, int] = copies
        self.waited_seconds: float = waited_seconds
        self.answers: str = answers

    def __str__(self) -> str:
        return (
            f"vbucket {self.vbucket}: seqno {self.seqno} is on the disk of {self.copies[0]} of {self.copies[1]} copies "
            f"after {self.waited_seconds:.0f} s ({self.answers}); bring the replica back, fail its node over, or ask "
            "for fewer copies (min_persisted)"
        )


# --------------------------------------------------------------------------- answers


class StatusError(HeadwaterError):
    """The server answered with a status other than success.

    A subclass registers itself by its number; `error_for` finds the first that did. A status without a class of its own
    is a plain StatusError that carries number and name.

    Args:
        context: the request in words, or the server's explanation.
        status: the number, for a status without a subclass.
    """

    registered: ClassVar[dict[int, type[StatusError]]] = {}
    names: ClassVar[dict[int, str]] = {}
    number: ClassVar[int] = 0
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls, *, status: int, retriable: bool = False) -> None:
        super().__init_subclass__()
        cls.number, cls.retriable = status, retriable
        StatusError.registered.setdefault(status, cls)

    def __init__(self, context: str = "", status: int | None = None) -> None:
        self.context = context
        self.status: int = self.number if status is None else status
        super().__init__(context, self.status)

    @property
    def name(self) -> str:
        """The specification's name of the status, such as KEY_ENOENT."""
        return StatusError.names.get(self.status, "a status the specification does not name")

    def __str__(self) -> str:
        meaning = (type(self).__doc__ or "").partition("\n")[0] if type(self) is not StatusError else ""
        context = f"{self.context}: " if self.context else ""
        return f"{context}{self.name} (status 0x{self.status:02x})" + (f": {meaning}" if meaning else "")


class KeyNotFound(StatusError, status=0x01):
    """There is no such document."""


class BucketNotFound(KeyNotFound, status=0x01):
    """The node has no such bucket; its name ends the connection string, as in couchbase://host/BUCKET."""


class KeyExists(StatusError, status=0x02):
    """The key is there already, or its CAS is not the one given; read it again, then decide."""


class TooBig(StatusError, status=0x03):
    """The value or key is larger than the server accepts."""


class InvalidArguments(StatusError, status=0x04):
    """The server finds the request malformed or its values impossible."""


class NotStored(StatusError, status=0x05):
    """There is no document to append or prepend to."""


class NotANumber(StatusError, status=0x06):
    """The value is not a decimal number, so it can't be counted up or down."""


class NotMyVbucket(StatusError, status=0x07, retriable=True):
    """Another node owns this vbucket; fetch the map again, then retry."""


class NoBucket(StatusError, status=0x08):
    """No bucket is selected on this connection; select one first."""


class Locked(StatusError, status=0x09, retriable=True):
    """The document is locked; unlock it with its CAS, or wait until the lock runs out."""


class StreamNotFound(StatusError, status=0x0A):
    """The peer has no such stream."""


class OpaqueNoMatch(StatusError, status=0x0B):
    """The message's opaque is not that of the stream."""


class NotLocked(StatusError, status=0x0E):
    """The document is not locked, so there is nothing to unlock."""


class CasInvalid(StatusError, status=0x0F):
    """A CAS of 0 or of all ones can't be stored."""


class AuthStale(StatusError, status=0x1F):
    """The user changed since this connection authenticated; authenticate again."""


class AuthError(StatusError, status=0x20):
    """User name or password is wrong."""


class OutOfRange(StatusError, status=0x22):
    """A number lies outside of its range: for a stream, start > end or start outside its snapshot."""


class NoAccess(StatusError, status=0x24):
    """The user may not do this (or has not authenticated yet)."""


class NotInitialized(StatusError, status=0x25, retriable=True):
    """The node is not set up yet."""


class UnknownCommand(StatusError, status=0x81):
    """The server does not know this opcode."""


class OutOfMemory(StatusError, status=0x82, retriable=True):
    """The server is short of memory; retry later."""


class NotSupported(StatusError, status=0x83):
    """The server knows the command but does not support it, or not on this connection."""


class InternalError(StatusError, status=0x84):
    """The server failed inside; its log says more."""


class Busy(StatusError, status=0x85, retriable=True):
    """The server is busy; retry."""


class TemporaryFailure(StatusError, status=0x86, retriable=True):
    """Not now: the server is starting, full or paused; retry with a growing delay."""


class XattrInvalid(StatusError, status=0x87):
    """The extended attributes in the value can't be read."""


class UnknownCollection(StatusError, status=0x88):
    """The collection does not exist (any more)."""


class UnknownScope(StatusError, status=0x8C):
    """The scope does not exist (any more)."""


class StreamIdInvalid(StatusError, status=0x8D):
    """A stream id is missing, unexpected or not one of this vbucket's."""


class DurabilityInvalidLevel(StatusError, status=0xA0):
    """The durability level is not 1, 2 or 3."""


class DurabilityImpossible(StatusError, status=0xA1):
    """Fewer nodes have a copy than a majority needs, nothing was done; bring one back, or rebalance."""


class SyncWriteInProgress(StatusError, status=0xA2, retriable=True):
    """Another durable write on this key is under way; retry."""


class SyncWriteAmbiguous(StatusError, status=0xA3):
    """The durable write was not confirmed in time; it may or may not have happened. Read before deciding."""


class SyncWriteReCommitInProgress(StatusError, status=0xA4, retriable=True):
    """A durable write from before a restart or a failover waits for the remaining copies; retry."""


def error_for(status: int, context: str = "") -> StatusError:
    """Return (not raise) the error that belongs to a response's status.

    Args:
        status: bytes 6-7 of the response, anything but 0.
        context: the request in words, e.g. 'get "k1" (vbucket 7)'.
    """
    kind = StatusError.registered.get(status)
    return kind(context) if kind else StatusError(context, status)


def name_statuses(names: Mapping[int, str]) -> None:
    """Teach the errors the specification's status names (called once, by headwater.wire.status)."""
    StatusError.names.update(names)


# --------------------------------------------------------------------------- histories


class RollbackRequired(HeadwaterError):
    """The two ends' histories of a vbucket differ after seqno `common`.

    Args:
        vbucket: its number.
        requested: the seqno we wanted to continue from.
        common: the last seqno that both share. Go back to the newest complete state at or below it
            (`headwater.client.safe_point`), and drop all later changes, before you ask again.
        reason: the rule that decided, in words.
    """

    def __init__(self, vbucket: int, requested: int, common: int, reason: str = "") -> None:
        super().__init__(vbucket, requested, common, reason)
        self.vbucket: int = vbucket
        self.requested: int = requested
        self.common: int = common
        self.reason: str = reason

    def __str__(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        return (
            f"vbucket {self.vbucket}: cannot continue from seqno {self.requested}; the node shares our history up to "
            f"seqno {self.common} only{because}. Go back to the newest complete position at or below it "
            f"(headwater.client.safe_point), drop what lies after that, then ask again from there"
        )


class DataLoss(RollbackRequired):
    """Deletions were purged before a reader came to them: it must read these vbuckets again whole.

    Args:
        purged: vbucket to the seqno up to which deletions are gone. requested: the seqno from which the first of them
            was to go on.
    """

    def __init__(self, purged: Mapping[int, int], requested: int) -> None:
        self.purged: dict[int, int] = dict(purged)
        super().__init__(min(purged), requested, 0)
        self.args: tuple[Any, ...] = (self.purged, requested)

    def __str__(self) -> str:
        vbuckets = _first_names([f"{vb} (to seqno {seqno})" for vb, seqno in sorted(self.purged.items())])
        return (
            f"data loss: deletions were purged before they were read, in vbuckets {vbuckets}; reading went on from "
            f"seqno {self.requested}. Read them again from the beginning and drop what they no longer have: so do "
            '--on-data-loss warn, failOnDataLoss=false in Spark (behind a rollback row), on_data_loss="read_again"'
        )


class HistoryChanged(HeadwaterError):
    """A failover or a purge changed the history during a bounded read: for `vbuckets` it has no state that ever
    existed.

    Args:
        vbuckets: their numbers, ascending.
        purged: for vbuckets without a failover, the seqno up to which deletions are gone.
    """

    def __init__(self, vbuckets: Sequence[int], purged: Mapping[int, int] = MappingProxyType({})) -> None:
        self.vbuckets: list[int] = list(vbuckets)
        self.purged: dict[int, int] = dict(purged)
        super().__init__(self.vbuckets, self.purged)

    def __str__(self) -> str:
        failed_over = [str(vb) for vb in self.vbuckets if vb not in self.purged]
        purge_texts = [f"{vb} (to seqno {seqno})" for vb, seqno in sorted(self.purged.items())]
        reasons = [f"a failover changed the history of vbucket {_first_names(failed_over)}"] if failed_over else []
        reasons += [f"deletions were purged in vbucket {_first_names(purge_texts)}"] if purge_texts else []
        return f"{', '.join(reasons)} after this read was planned: read again"


class BucketMadeAnew(HeadwaterError):
    """The bucket of a request was dropped and made again under its name meanwhile.

    Args:
        url: connection string of the bucket, without a login.
        before, now: the uuid (empty: unknown) and the number of vbuckets of the request's bucket, and of the present
            one.
    """

    def __init__(self, url: str, before: tuple[str, int], now: tuple[str, int]) -> None:
        super().__init__(url, before, now)
        self.url: str = url
        self.before: tuple[str, int] = before
        self.now: tuple[str, int] = now

    def __str__(self) -> str:
        (old, count), (new, count_now) = self.before, self.now
        return (
            f"{self.url}: the bucket was dropped and made again: it was {old or '?'} with {count} vbuckets, and is "
            f"{new or '?'} with {count_now}. Nothing that was written before is in it: write all of it again"
        )


class CollectionMadeAnew(HeadwaterError):
    """A collection was dropped and made again under its name while it was written to.

    Args:
        path: its name, "scope.collection".
        before, now: its id when the first document was written, and the present one.
    """

    def __init__(self, path: str, before: int, now: int) -> None:
        super().__init__(path, before, now)
        self.path: str = path
        self.before: int = before
        self.now: int = now

    def __str__(self) -> str:
        return (
            f"collection {self.path} was dropped and made again: it had id 0x{self.before:x}, and has 0x{self.now:x}. "
            "Nothing that was written before is in it: write all of it again"
        )


# --------------------------------------------------------------------------- several nodes


class ClusterError(HeadwaterError):
    """Nodes of a cluster are not in the state that a request needs; `problem` names the fault, `advice` the
    next step.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem: str = problem
        self.advice: str = advice

    def __str__(self) -> str:
        return f"{self.problem}; {self.advice}"


class WorkRefused(ClusterError):
    """The object of an operator's work is missing, or in a state that does not allow the work."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem, advice)

    def __str__(self) -> str:
        return super().__str__() if self.advice else self.problem


class MoveError(ClusterError):
    """A vbucket could not be moved; the progress stays, and the same move can be requested again."""

    def __init__(self, vbucket: int, problem: str, advice: str, retriable: bool = False) -> None:
        super().__init__(problem, advice)
        self.args: tuple[Any, ...] = (vbucket, problem, advice, retriable)
        self.vbucket: int = vbucket
        self.retriable: bool = retriable

    def __str__(self) -> str:
        return f"vbucket {self.vbucket}: {super().__str__()}"


# --------------------------------------------------------------------------- storage and settings


class StorageError(HeadwaterError):
    """The store can't carry out a request."""


class CorruptStore(StorageError):
    """A file of the store is damaged in a way that no crash explains; nothing was changed, and the damage is not
    served.
    """

    def __init__(self, path: str | Path, offset: int, why: str) -> None:
        super().__init__(path, offset, why)
        self.path: str | Path = path
        self.offset: int = offset
        self.why: str = why

    def __str__(self) -> str:
        return f"{self.path}: byte {self.offset}: {self.why}; restore the directory from a copy"


class DiskFull(StorageError):
    """The disk has no room for `needed_bytes` more (0: not known), it has `free_bytes` (None: not asked); reads go on,
    writes are refused until there is room. `starting`: the node does not start without it."""

    def __init__(
        self, path: str | Path, needed_bytes: int = 0, free_bytes: int | None = None, *, starting: bool = False
    ) -> None:
        super().__init__(path, needed_bytes, free_bytes)
        self.path: str | Path = path
        self.needed_bytes: int = needed_bytes
        self.free_bytes: int | None = free_bytes
        self.starting: bool = starting

    def __str__(self) -> str:
        need = f"no room for {self.needed_bytes} more bytes" if self.needed_bytes else "no room left"
        free = f", {self.free_bytes} are free" if self.free_bytes is not None else ""
        next_step = (
            "and start again, or choose a folder on another disk" if self.starting else "writing resumes by itself"
        )
        return f"{self.path}: {need}{free}; free some space{' ' if self.starting else ', '}{next_step}"


class StoreLocked(StorageError):
    """Another process has the store open."""

    def __init__(self, path: str | Path, holder: str = "") -> None:
        super().__init__(path, holder)
        self.path: str | Path = path
        self.holder: str = holder

    def __str__(self) -> str:
        who = self.holder or "another process"
        return f"{self.path}: {who} has this store open; stop it, or choose another directory"


class UnsureFile(StorageError):
    """A disk refused both a change and the old file: the change may be in force after a restart."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(path, why)
        self.path: str | Path = path
        self.why: str = why

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.why}, and the file of before could not be put back: the change may be in force after "
            "a restart, if not now; once the disk takes writes, look, and repeat it or take it back"
        )


class TableError(HeadwaterError):
    """A table of the lake can't be used for this request: `place` names it, `problem` has the reason and the
    next step.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)
        self.place: str = place
        self.problem: str = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class UnsupportedTable(TableError):
    """The table demands a feature of its writers that headwater does not support; nothing was written."""


class TableChanged(TableError):
    """Another commit came first and changed the base of this one; nothing was written. Plan again, and repeat."""


class TableAway(TableError):
    """The table that was read is not at its place any more: no table is there, or another one, or an older state of it.
    Nothing was written; the table may come back, as a mount does.
    """


class CatalogRefused(TableError):
    """A catalog of Iceberg refuses a table, or points elsewhere; the table in its folder is whole. `problem` has
    the reason and the next step.
    """


class BackupError(HeadwaterError):
    """An archive of backups can't be used for this request: `place` names it or a file of it, `problem` has
    the reason.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)
        self.place: str = place
        self.problem: str = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class NotesError(HeadwaterError):
    """The notes of delivered keys can't undo a rollback: `place` names their folder or a file of it, `problem` has the
    reason and the next step.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)
        self.place: str = place
        self.problem: str = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


class LedgerError(TableError):
    """A job's file can't be used for this request: `place` names it, `problem` has the reason and the next step."""


class SearchRefused(HeadwaterError):
    """A search server refused for good: `peer` is its address, `problem` its answer."""

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(peer, problem)
        self.peer: str = peer
        self.problem: str = problem

    def __str__(self) -> str:
        return f"{self.peer}: {self.problem}"


class PublishRefused(HeadwaterError):
    """Kafka refused for good, or another process publishes in our place: `peer` is the brokers' address, `problem`
    the reason.
    """

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(peer, problem)
        self.peer: str = peer
        self.problem: str = problem

    def __str__(self) -> str:
        return f"{self.peer}: {self.problem}"


class RowsRefused(HeadwaterError):
    """Nodes refused `count` rows of a DataFrame for good; `first` is the key of one of them, `reason` the reason.

    `advice` is the next step.
    """

    def __init__(
        self,
        count: int,
        first: bytes | None,
        reason: str,
        advice: str = "The option deadLetters keeps such rows aside and lets the others go on",
    ) -> None:
        super().__init__(count, first, reason, advice)
        self.count: int = count
        self.first: bytes | None = first
        self.reason: str = reason
        self.advice: str = advice

    def __str__(self) -> str:
        sentence = f"{self.count} rows were refused for good, the first has the key {self.first!r}: {self.reason}"
        return f"{sentence}. {self.advice}"


_WORD = re.compile(r"[^\s\"']+")


def hide_logins(text: str) -> str:
    """Return a text without the names and passwords of the addresses in it, for logs and screens.

    The time is proportional to the text, which a client may have sent.
    """
    return _WORD.sub(_without_login, text) if "://" in text else text


def _first_names(names: Sequence[str]) -> str:
    """Return the first ten of some names, and the number of the others."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _without_login(word: re.Match[str]) -> str:
    text = word[0]
    scheme, end = text.find("://"), text.rfind("@")
    if scheme < 0 or end < scheme:
        return text
    begin = text.rfind("(", 0, scheme) + 1
    return f"{text[:begin]}...{text[end:]}"


class OutputLost(HeadwaterError):
    """The output of a command can't be written any more, for `reason`: its reader is gone, or the disk is full."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the output can't be written: {self.reason}; what was done is kept, and the next run goes on from there"


class OptionError(HeadwaterError, ValueError):
    """A setting has a value it can't have.

    Args:
        name: the option.
        value: its value; a name and a password in an address are not kept.
        allowed: the allowed values, as a phrase: "a vbucket list such as 0-511,700".
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        value = hide_logins(value) if isinstance(value, str) else value
        super().__init__(name, value, allowed)
        self.name: str = name
        self.value: str | object = value
        self.allowed: str = allowed

    def __str__(self) -> str:
        value_text = f'"{self.value}"' if isinstance(self.value, str) else repr(self.value)
        return f'option "{self.name}": {value_text} is not {self.allowed}'


class InvariantBroken(HeadwaterError):
    """A rule of headwater's own does not hold: headwater or the memory is at fault.

    Nothing that breaks the rule was written or acknowledged.

    Args:
        rule: the fault in words, with a `{}` for each of `numbers`.
    """

    def __init__(self, rule: str, *numbers: object) -> None:
        super().__init__(rule, *numbers)
        self.rule: str = rule
        self.numbers: tuple[object, ...] = numbers

    def __str__(self) -> str:
        return (
            f"{self.rule.format(*self.numbers)}: a rule of headwater's own is broken, and nothing was written or "
            "acknowledged past it; keep the log, report this line, and start again from what is on disk"
        )
