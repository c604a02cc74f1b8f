"""One worker of a node: what its own process knows about itself and the other workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.node.connections.listening import BACKLOG
from headwater.node.membership.file import MapFile
from headwater.node.workers.layout import WorkersLayout
from headwater.wire.address import Address
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

__all__ = ["NodeWorker"]


@dataclass(frozen=True, slots=True)
class NodeWorker:
    """A worker process of the node: its number, and the facts that all workers share.

    Attributes:
        number: the worker's number, from 0.
        layout: the layout of the folder: the addresses of all workers, the bucket, the number of vbuckets.
        group: the group of all workers in the cluster map.
        folder: the folder of the node, which holds the users of all workers.
        public: the socket at the node's own address, on which all workers accept connections.
        public_tls: the same for TLS; None without TLS.
        relays: the folder of the sockets at which workers call each other, by a path that their processes can use.
        public_pages: the socket at the address that serves only the HTTP pages; None without one.
    """

    number: int
    layout: WorkersLayout
    group: str
    folder: Path
    public: socket.socket
    public_tls: socket.socket | None
    relays: Path
    public_pages: socket.socket | None = None

    @property
    def siblings(self) -> dict[Address, int]:
        """The numbers of the other workers, by their addresses."""
        return {each: at for at, each in enumerate(self.layout.addresses) if at != self.number}

    def relay(self, number: int) -> str:
        """Return the path of the socket at which other workers call worker `number`."""
        return str(self.relays / f"worker-{number}")

    def listen(self) -> socket.socket:
        """Return the socket at which the other workers call this one, listening.

        Raises:
            OSError: the socket can't be created.
        """
        path = Path(self.relay(self.number))
        path.unlink(missing_ok=True)  # that of this worker's previous process
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def begin(self, bucket: Bucket) -> None:
        """Write the first map and create this worker's vbuckets by it, unless that was done before.

        To be called before the server runs.

        Raises:
            StorageError, DiskFull: the map or the vbuckets could not be written. No client has been served, and the
                next start continues.
        """
        layout, store = self.layout, bucket.store
        # Never once all workers have served: if a worker's store is lost, its vbuckets must not be created again,
        # empty, and served as if nothing were missing.
        if layout.complete or not layout.has_map or store.recovered:
            return
        first = layout.first_map(self.group)
        file = MapFile(store.disk, store.path)
        # The map before the vbuckets: a worker with vbuckets but without a map would not know that other workers own
        # the rest.
        if file.load() is None:
            file.save(first.to_json(layout.addresses[self.number]), [])
        store.declarations.join()
        for vb in first.held_by(layout.addresses[self.number])[0]:
            bucket.create_vbucket(vb, State.ACTIVE)
        bucket.refresh()
