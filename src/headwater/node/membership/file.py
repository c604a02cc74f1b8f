"""The map on disk, next to the log: after a crash a node must not have an older map than before.

One file of three lines: `headwater-cluster-map 1 <XXH3-64 of the other two, 16 hex digits>`, the vbuckets that this map
takes away from the node as a JSON list, and the map's JSON without line breaks. A new map is written and synced to
another file, which then replaces the old one by rename, so that after a crash one of the two is complete. A damaged
file makes the start fail with its name: with an older map, or none, the node could serve vbuckets that another node
owns by now. The store's manifest records that there is a map (Declarations.is_member), so that a missing file is
noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from headwater.errors import StorageError
from headwater.node.storage.disk import Disk
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file

NAME: Final = "CLUSTER_MAP"
NEXT_NAME: Final = "CLUSTER_MAP.new"
_FAILPOINTS: Final = ("cluster.before_rename", "cluster.after_rename")
_TITLE: Final = "headwater-cluster-map"
_FORMAT: Final = "1"


class MapFile:
    """The file of the map in a store's folder.

    Args:
        disk: the disk.
        folder: the folder of the store.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.path: Path = folder / NAME
        self.whole: Final = WholeFile(disk, self.path, folder / NEXT_NAME, _FAILPOINTS)
        self._disk = disk
        self._folder = folder

    def load(self) -> tuple[bytes, list[int]] | None:
        """Return the map's JSON, and the vbuckets to give up because of it; None if there is no map.

        Raises:
            CorruptStore: the file was changed since it was written.
            StorageError: the file has another format, or can't be read.
        """
        try:
            if NAME not in self._disk.names(self._folder):
                return None
            return _decode(self._disk.read(self.path), self.path)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error

    def save(self, config: bytes, given_up: list[int]) -> None:
        """Replace the map on disk; durable on return. Blocks while the disk works.

        Args:
            config: the map as JSON.
            given_up: the active vbuckets that other nodes own by the map. Their new states are written to the log
                later; if the node crashes before, the next start reads this list.

        Raises:
            DiskFull, StorageError: the old map is still on disk.
            UnsureFile: either map may be on disk.
        """
        # Map and list are in one file, so that a crash can't keep the map and lose the list.
        self.whole.replace(_encode(config, given_up))


def _encode(config: bytes, given_up: list[int]) -> bytes:
    # A line break in JSON is blank space between tokens; in the file it would end the line.
    body = json.dumps(given_up).encode() + b"\n" + config.replace(b"\n", b" ").replace(b"\r", b" ")
    return encode_text_file(_TITLE, _FORMAT, body)


def _decode(data: bytes, path: Path) -> tuple[bytes, list[int]]:
    body = decode_text_file(data, path, _TITLE, [_FORMAT], "cluster map")
    given_up, _, config = body.partition(b"\n")
    return config, json.loads(given_up)
