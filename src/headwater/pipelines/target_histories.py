"""The histories of a copy's target: a failover there may take back copied changes, which the source does not send
again.

A target answers a write when one of its nodes has it, so a replica that is promoted there may lack copied changes. So
after each batch, before Spark notes it as done, the copy notes the branch and the high seqno of each vbucket of the
target. Before the next batch it checks that the present history still has all of that. If a branch began while a batch
was written, it is unknown which of the writes the branch has: the batch is written again.

The copy also notes up to which seqnos of the source it has copied, since only those changes are sent again.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from headwater.client.unread import knows_collections
from headwater.errors import ConnectionLost
from headwater.pipelines.beside import FileBeside
from headwater.spark.history import BranchHistory
from headwater.spark.nodes import connect, patiently
from headwater.spark.offsets import U64_MAX, hex_uuid
from headwater.spark.settings import SourceSettings

if TYPE_CHECKING:
    from headwater.client import Client

FILE: Final = "target.json"
FORMAT: Final = 1
SEQNO_MAX: Final = (1 << 63) - 1
NO_BRANCH: Final = 0
"""The vb uuid of no branch: what was noted under it is in no history."""

_BEGUN: Final = "%s: a failover or restart began new branches in %d vbuckets, the first is %d: what was written there \
meanwhile is written again"

log: Final = logging.getLogger(__name__)
Reached = dict[int, tuple[int, int]]
"""By vbucket, the vb uuid of its newest branch and its high seqno."""


class TargetHistories:
    """A check that a copy's target still has the copied changes; used by the driver.

    Args:
        target: the target, as the settings of a read.
        file: the file beside the checkpoint that keeps the note.

    Attributes:
        forced: the source's vbuckets in which documents were forced on the target (restore.py). Documents that the
            target had before that may have higher revisions, so these vbuckets are forced again where the target has
            lost some.
        copied: by vbucket of the source, up to which seqno it was copied. The caller changes it, and `note` saves it.
    """

    def __init__(self, target: SourceSettings, file: FileBeside) -> None:
        self._target, self._file = target, file
        self._client: Client | None = None
        self._collections: bool | None = None
        self._noted_places: Reached | None = None
        self.forced: set[int] = set()
        self.copied: dict[int, int] = {}
        self._began_earlier = False
        self._text = ""
        self._state: dict[int, BranchHistory] = {}

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def lost(self) -> list[int]:
        """Read the target's histories; return its vbuckets that lack a change that they had at the last note,
        ascending.

        Raises:
            TransportError, StatusError: a node did not answer for `retrySeconds`.
        """
        self._state = self._observe()
        noted = self._read() if self._noted_places is None else self._noted_places
        self._noted_places = noted
        return sorted(vb for vb, history in self._state.items() if _lacks(history, noted.get(vb)))

    def vbuckets(self) -> int:
        """Return the number of vbuckets of the target."""
        return self._connected().map.vbuckets

    def note(self) -> bool:
        """Note the target's histories after a batch.

        Returns: False, with nothing noted, if a branch began since `lost`: it may lack a part of the batch, which must
        be written again.

        Raises:
            TransportError, StatusError: a node did not answer for `retrySeconds`.
        """
        now = self._observe()
        new_branches = [
            vb for vb, history in sorted(self._state.items()) if vb in now and now[vb].vb_uuid != history.vb_uuid
        ]
        if new_branches:
            log.warning(_BEGUN, self._target.url, len(new_branches), new_branches[0])
            return False
        positions = {vb: (history.vb_uuid, history.high_seqno) for vb, history in now.items()}
        # One that had a node before the batch and has none now took writes that nobody can tell of.
        unreadable = dict.fromkeys(self._state.keys() - now.keys(), (NO_BRANCH, U64_MAX))
        # A vbucket that no node had at either look keeps its note of before.
        self._noted_places = {**(self._noted_places or {}), **positions, **unreadable}
        text = self._to_text()
        if text != self._text:
            self._file.write(text)
            self._text = text
        return True

    def reached(self, vbucket: int) -> int:
        """Return the seqno of the source up to which a vbucket was copied.

        Returns: the highest possible seqno if the vbucket was copied before there was such a note; 0 if it was never
        copied.
        """
        return self.copied.get(vbucket, SEQNO_MAX if self._began_earlier else 0)

    def _observe(self) -> dict[int, BranchHistory]:
        return patiently(self._histories, self._target.retry_seconds)

    def _histories(self) -> dict[int, BranchHistory]:
        """Return the histories of all vbuckets that have a node, each with log and seqno of one branch."""
        client = self._connected()
        if self._collections is None:
            self._collections = knows_collections(client)
        logs = client.failover_logs(client.seqnos())
        highs = client.seqnos("all") if self._collections else client.seqnos()
        # The seqno comes in another answer than the log: only if the log is still the same does it belong to its newest
        # branch.
        if client.failover_logs(highs) != logs:
            raise ConnectionLost(self._target.url, "a vbucket moved or began a new branch between two answers")
        return {vb: BranchHistory(tuple(logs[vb]), high) for vb, high in sorted(highs.items())}

    def _connected(self) -> Client:
        self._client = self._client or connect(self._target)
        return self._client

    def _read(self) -> Reached:
        """Return the note; {} if there is none. For a damaged note, return one that every history lacks: all is sent
        again.
        """
        text = self._file.read()
        if text is None:
            self._began_earlier = self._file.has_offsets()
            return {}
        try:
            content = json.loads(text)
            noted = {int(vb): (int(uuid, 16), int(seqno)) for vb, (uuid, seqno) in content["target"].items()}
            copied, forced = {int(vb): int(seqno) for vb, seqno in content["copied"].items()}, set(content["forced"])
            if content["format"] == FORMAT:
                self.copied, self.forced, self._began_earlier = copied, forced, bool(content["began_earlier"])
                self._text = text
                return noted
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        log.warning("%s/%s can't be read: all documents are sent to the target again", self._file.place, FILE)
        self._began_earlier = True
        return dict.fromkeys(self._state, (NO_BRANCH, U64_MAX))

    def _to_text(self) -> str:
        target = {str(vb): [hex_uuid(uuid), seqno] for vb, (uuid, seqno) in sorted((self._noted_places or {}).items())}
        content: dict[str, Any] = {"format": FORMAT, "began_earlier": self._began_earlier, "target": target}
        content["copied"] = {str(vb): seqno for vb, seqno in sorted(self.copied.items())}
        return json.dumps(content | {"forced": sorted(self.forced)})


def _lacks(history: BranchHistory, noted: tuple[int, int] | None) -> bool:
    """Return True if a history lacks changes of the noted branch up to the noted seqno; False without a note."""
    return noted is not None and history.shared_with(noted[0]) < noted[1]
