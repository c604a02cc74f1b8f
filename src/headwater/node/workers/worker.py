"""One worker, as its own process knows it."""

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
        folder: the folder of the node, which holds the users of all workers.
        public: the node's own address, at which all of them accept; public_tls: the one for TLS.
        relays: the folder of the sockets by which workers call each other, as their processes reach it.
        public_pages: the address for the HTTP pages alone.
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
        """Return the path of the socket at which the others call a worker."""
        return str(self.relays / f"worker-{number}")

    def listen(self) -> socket.socket:
        """Listen at the socket that the others call. Raises OSError."""
        path = Path(self.relay(self.number))
        path.unlink(missing_ok=True)  # of the process before
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def begin(self, bucket: Bucket) -> None:
        """Create this worker's vbuckets by the first map, unless that was done before, and keep the map. To be called
        before the server runs.

        Raises:
            StorageError, DiskFull: no client has been served; the next start continues.
        """
        layout, store = self.layout, bucket.store
        # Never again once all workers have served: the vbuckets of a store that was lost would come back empty, and be
        # served as such.
        if layout.complete or not layout.has_map or store.recovered:
            return
        first = layout.first_map(self.group)
        file = MapFile(store.disk, store.path)
        # The map before the vbuckets: a worker that owns some without a map would not know that others own the rest.
        if file.load() is None:
            file.save(first.to_json(layout.addresses[self.number]), [])
        store.declarations.join()
        for vb in first.held_by(layout.addresses[self.number])[0]:
            bucket.create_vbucket(vb, State.ACTIVE)
        bucket.refresh()
