"""The log of a node: one line for each event, as text or as JSON; each kind of event has a stable name.

Code logs an event by `log.warning("...", extra=event("disk.full", needed=1))`; its name must be in EVENTS, from which
docs/reference/log-events.md is generated. Levels are set for the whole node, or for parts of it:
`warning,replication=info`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from headwater.errors import OptionError
from headwater.node.reporting.fault_log import RareTracebacks

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ROOT = "headwater.node"
EVENTS: Mapping[str, str] = {
    "node.ready": "it listens; to stdout this is the line `ready`, in JSON with `--log-format json`, at any level",
    "node.ready_not_written": "stdout takes no line: its disk is full, or its reader is gone; the node serves",
    "node.lines_not_written": "lines of this log came late or not at all: its disk is full, or its reader is gone",
    "node.stopping": "it was asked to stop, by SIGTERM or SIGINT",
    "node.stopped": "it has stopped, and all is on disk",
    "node.open": "it can be reached by others without TLS, or without a login",
    "node.commands": "how many files commands were read from",
    "kernels.compiling": "kernels that nothing can do without are compiled before it serves; then every 5 s how many",
    "kernels.compiled": "kernels are compiled beside the serving, and so many are there: the first start on a machine",
    "kernels.alone": "the process that compiles them ended or could not begin; the node does it itself",
    "kernels.failed": "they can't be compiled; a traceback follows",
    "node.refused": "it can't start, or not go on, and why; a wrong option is told before there is a log, as text",
    "node.failed": "something inside failed; a traceback follows",
    "worker.spare": "workers that the cluster map does not name, and how they get vbuckets",
    "worker.left": "a worker is none any more, and its folder has another name",
    "worker.ended": "a worker of `--workers` is gone, and is started again; the others go on",
    "peer.fault": "a peer broke a rule, was refused, or was lost",
    "peer.closed": "a connection was closed in order",
    "user.refused": "a user tried what he may not do",
    "login.refused": "somebody did not come in; `user` is the name that was given, as far as one was",
    "admin.done": "a user changed users, buckets, collections or a cluster map, or deleted all documents",
    "admin.moved": "a user set the state of vbuckets, or said whom they follow; ten lines a minute of a host",
    "users.changed": "users or their roles were changed: in the folder, by an administrator or by another member",
    "users.unknown": "another member did not say which users it knows; it is asked again",
    "users.shared": "another member told of users, and they are those of this node by now",
    "users.unadministered": "the administrators of all buckets removed each other at the same time, at two members",
    "tls.certificate": "a certificate was taken up, or is about to run out",
    "file.unsure": "a change was refused, and a restart before the disk takes writes may bring it all the same",
    "file.settled": "such a file is the one of before again",
    "batch.lost": "a batch could not be written; those who waited for it were disconnected",
    "index.lost": "memory and disk differ; the node ends as in a crash",
    "invariant.broken": "a rule of headwater's own does not hold, by a fault of it or of memory; the node ends",
    "log.cut": "the torn end of a file of the log, which nobody was told of, was cut at the start",
    "log.damaged": "a batch on disk is damaged, and not served any more",
    "log.verified": "all of the log was verified",
    "compaction.done": "a run of compaction is over",
    "compaction.failed": "a run of compaction gave up; the log is as it was",
    "stream.unreadable": "a document on disk is not what its datatype says; a stream that had to look into it ended",
    "streams.slow": "streams that kept replaced files for too long were ended",
    "bucket.created": "a bucket was made, and is served",
    "bucket.dropped": "a bucket was dropped, and its files are removed",
    "bucket.quota": "a bucket has another quota",
    "bucket.collections_history": "collections that are made in a bucket from now on have a history, or none",
    "bucket.history": "a bucket keeps old versions for another time, or of another size",
    "bucket.unflushed": "a bucket was to be flushed by now, and damage keeps it from that",
    "bucket.left": "files of a bucket that is gone are still there; the next start tries to remove them again",
    "collections.late": "not every vbucket could be told of a new collections manifest; the next change tries again",
    "pager.failed": "expired documents could not be deleted",
    "dcp.refused": "a DCP request was refused, and why",
    "tap.dropped": "a TAP session whose client was away is over",
    "replica.lacks": "a replica refused a change of its producer, and lacks it until a newer version of the key comes",
    "replica.whole": "a replica lacks nothing any more that it refused: it is here in newer versions, or comes anew",
    "replication.connected": "a producer is followed",
    "replication.failed": "a producer can't be followed; it is tried again",
    "member.stood_still": "its process stood still for seconds; it asks whether the others went on without it",
    "map.taken": "a newer cluster map was taken over from another member",
    "map.moved": "a new cluster map gives vbuckets of this node to others",
    "member.copied": "this folder is a copy of a member's that is up; its vbuckets are not served here",
    "map.departed": "a member is gone, and what it owned has no owner until the next map",
    "map.promoted": "vbuckets that had no owner, as after a member is gone, became active here",
}


def event(name: str, **fields: object) -> dict[str, Any]:
    """Return the fields of an event's log line, for the argument `extra`.

    Raises:
        KeyError: the name is not in EVENTS.
    """
    if name not in EVENTS:
        raise KeyError(name)
    return {"event": name, "fields": fields}


class OneLine(logging.Formatter):
    """Formats each message as one line: names sent by peers may contain newlines and terminal escape sequences."""

    _escapes = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: " ", 0x2029: " "}

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's
        """Return the time in the form of JsonLine."""
        return _moment(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line, without the traceback, which may follow it."""
        return super().formatMessage(record).translate(self._escapes)


class JsonLine(logging.Formatter):
    """Formats each message as one JSON object: time, level, module, event, message, further fields, the traceback if
    any.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "module": record.name.removeprefix(f"{ROOT}."),
            "event": getattr(record, "event", None),
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in getattr(record, "fields", {}).items() if name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _moment(record: logging.LogRecord) -> str:
    """Return the time as UTC in RFC 3339, as in the console and the commands: 2026-01-02T03:04:05.678Z."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_line(logger: logging.Logger, message: str, extra: Mapping[str, Any]) -> str:
    """Return a message as a JSON log line of level info, whatever the log's level."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, message, (), None, extra=dict(extra))
    return JsonLine().format(record)


def parse_levels(text: str) -> dict[str, str]:
    """Return the levels in a text such as `warning,replication=info`, by module; the key "" is for all other modules.

    Raises:
        OptionError: an unknown level, or a module that is named twice.
    """
    levels: dict[str, str] = {}
    for part in text.split(","):
        module, equals, level = part.strip().rpartition("=")
        words = module.replace(".", "").replace("_", "")
        if level not in LEVELS or module in levels or (equals and not (words.isascii() and words.isalnum())):
            form = f"one of {', '.join(LEVELS)}, for all or as MODULE=LEVEL, by commas"
            raise OptionError("log-level", text, form)
        levels[module] = level
    return levels


class OfWorker(logging.Filter):
    """Adds the worker's number to each log line, on a node with several workers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the number to the record; return True."""
        record.msg = f"worker {self._number}: {record.msg}"
        record.fields = {**getattr(record, "fields", {}), "worker": self._number}
        return True


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes the log. If its disk is full, which is often the store's disk too, the handler counts the lost lines, and
    prints no tracebacks.
    """

    _lost_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. If earlier lines could not be written, first write a line with their number."""
        if failed := self._lost_lines:
            self._lost_lines = 0
            message = "lines of the log came late or not at all, for its disk did not take them: %d"
            logger, fields = logging.getLogger(ROOT), event("node.lines_not_written", lines=failed)
            super().emit(logger.makeRecord(ROOT, logging.WARNING, "", 0, message, (failed,), None, extra=fields))
            if self._lost_lines:
                self._lost_lines = failed
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Count a line that could not be written. Any other error is a fault of headwater, and is printed with its
        traceback.
        """
        if isinstance(sys.exc_info()[1], OSError):
            self._lost_lines += 1
        else:
            super().handleError(record)


def begin(levels: str, form: str, out: TextIO | None = None, worker: int | None = None) -> None:
    """Begin to write the log.

    Args:
        levels: the levels, as for `parse_levels`.
        form: one of FORMATS.
        out: the stream; None for stderr.
        worker: the worker's number, for each line; None if there are no workers.
    """
    handler = LogHandler(out or sys.stderr)
    handler.setFormatter(JsonLine() if form == "json" else OneLine())
    handler.addFilter(RareTracebacks())
    by_module = {"": "warning", **parse_levels(levels)}
    if worker is not None:
        handler.addFilter(OfWorker(worker))
    logging.basicConfig(level=by_module.pop("").upper(), handlers=[handler], force=worker is not None)
    for module, level in by_module.items():
        logging.getLogger(f"{ROOT}.{module}").setLevel(level.upper())
