"""Changes the number of a folder's workers, when the node starts.

    more   --ports of their own, written to the file--> they start without vbuckets, and join by a rebalance
    fewer  --only if no map names those that leave--> their folders are set aside, and never deleted

Only a process that has bound the ports of all workers changes the file of workers: then no other node runs in the
folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from headwater.errors import OptionError, RemoteProtocolError, StorageError
from headwater.node.config import NodeConfig
from headwater.node.membership.file import MapFile
from headwater.node.reporting.log_lines import event
from headwater.node.storage.disk import RealDisk
from headwater.node.workers.layout import WorkersLayout, count_of, free_ports
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap

__all__ = ["resized", "spares"]

log: Final = logging.getLogger(__name__)


def resized(config: NodeConfig, layout: WorkersLayout) -> WorkersLayout:
    """Return the layout with as many workers as the settings demand; if it is new, it is on the disk on return.

    Raises:
        OptionError: this number of workers is impossible now; the error says what has to be done first.
        StorageError, DiskFull: either nothing or everything was changed, and the next start continues from there.
    """
    count, had = count_of(config), len(layout.ports)
    if count == had:
        _set_aside(config.data, had)  # what remains of a start that was interrupted
        return layout
    if not (layout.complete and layout.has_map):
        why = "all of them have been up once" if layout.has_map else "their cluster has no other machines"
        raise OptionError("workers", count, f"{had}, which {config.data} was made with, until {why}")
    if count > had:
        _set_aside(config.data, had)
        layout = _with_more(config, layout, count - had)
        # The new workers are in the file before they have folders; after an interruption here the next start creates
        # them.
        layout.save(config.data)
    else:
        _check_left(config, layout, count)
        layout = replace(
            layout,
            ports=layout.ports[:count],
            tls_ports=layout.tls_ports[:count],
            joining=max(0, layout.joining + count - had),
        )
        # First the file, then the folders: after an interruption between the two the next start sets the folders aside.
        layout.save(config.data)
        _set_aside(config.data, count)
    return layout


def spares(folder: Path, layout: WorkersLayout) -> list[Address]:
    """Return the addresses of the workers that no cluster map names: they have not joined yet, or have left.

    Raises:
        StorageError: a map can't be read.
    """
    if not layout.has_map:
        return []
    mapped = {server for map_ in _newest_maps(folder, len(layout.ports)) for server in map_.servers}
    return [address for address in layout.addresses if address not in mapped]


def _with_more(config: NodeConfig, layout: WorkersLayout, added: int) -> WorkersLayout:
    numbers = sorted((*layout.ports, *layout.tls_ports))
    is_a_row = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    first_port = 0 if config.worker_port in numbers else config.worker_port
    ports = free_ports(
        config, first_port or (numbers[-1] + 1 if is_a_row else 0), added * (2 if layout.tls_ports else 1)
    )
    return replace(
        layout,
        ports=(*layout.ports, *ports[:added]),
        tls_ports=(*layout.tls_ports, *ports[added:]),
        joining=layout.joining + added,
    )


def _check_left(config: NodeConfig, layout: WorkersLayout, count: int) -> None:
    """Raise OptionError if a worker that is to leave is named by a bucket's map."""
    leaving, had = layout.addresses[count:], len(layout.ports)
    for map_ in _newest_maps(config.data, had):
        if mapped := [each for each in leaving if each in map_.servers]:
            remove = " ".join(f"--remove {each}" for each in mapped)
            way = f"headwater cluster rebalance {Address(config.host, config.port)} {remove}"
            allowed = f"{had}, for the map of bucket {map_.bucket} names the others: start {had}, then {way}"
            raise OptionError("workers", count, allowed)


def _newest_maps(folder: Path, count: int) -> list[ClusterMap]:
    """Return the newest map of each bucket that any worker has on its disk."""
    newest: dict[str, ClusterMap] = {}
    for map_ in _maps(folder, count):
        if map_.bucket not in newest or newest[map_.bucket].version < map_.version:
            newest[map_.bucket] = map_
    return list(newest.values())


def _maps(folder: Path, count: int) -> Iterator[ClusterMap]:
    for number in range(count):
        worker = folder / f"worker-{number}"
        # Each bucket has its own map, in the folder of its store.
        for store in (worker, *sorted(worker.glob("buckets/*"))):
            file = MapFile(RealDisk(), store)
            if store.is_dir() and (saved := file.load()) is not None:
                try:
                    yield ClusterMap.from_json(saved[0])
                except RemoteProtocolError as error:
                    raise StorageError(f"{file.path}: {error}") from None


def _set_aside(folder: Path, count: int) -> None:
    """Rename the folders of workers that no longer exist; an operator may delete them."""
    for each in sorted(folder.glob("worker-*")):
        number = each.name.removeprefix("worker-")
        if number.isdigit() and int(number) >= count:
            # The time makes the name differ from that of a folder that was set aside before.
            aside = each.with_name(f"left-{each.name}-{time.time_ns()}")
            try:
                each.rename(aside)
            except OSError as error:
                raise StorageError(f"{each}: {error.strerror or error}") from error
            log.warning("worker %s has left; its folder is %s now", number, aside, extra=event("worker.left"))
