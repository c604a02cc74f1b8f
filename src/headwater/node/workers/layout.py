"""The workers of a folder: their number, their addresses, and their first map.

    headwater-data/WORKERS          written once, before any worker has a store; `complete` once all of them have one
    headwater-data/USERS            the users of all workers
    headwater-data/worker-0/        the store of a member, as any node's
    headwater-data/worker-1/

The first map depends on this file alone, so a worker whose first start was interrupted creates the same vbuckets at the
next one. Once the file is `complete`, a missing store is an error, and is not created again.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from headwater.errors import CorruptStore, OptionError, StorageError
from headwater.node.config import PORT, NodeConfig
from headwater.node.connections.listening import bound
from headwater.node.storage.disk import Disk, RealDisk
from headwater.node.storage.manifest import NAME as STORE_NAME
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file
from headwater.wire.address import Address
from headwater.wire.cluster_map import OWN_EPOCH, ClusterMap
from headwater.wire.vbucket import VBUCKETS_NEW

__all__ = ["WorkersLayout", "count_of", "free_ports", "layout_of", "load", "refuse_folder_of_workers"]

NAME: Final = "WORKERS"
_NEXT_NAME: Final = "WORKERS.new"
_FAILPOINTS: Final = ("workers.before_rename", "workers.after_rename")
_TITLE: Final = "headwater-workers"
_FORMAT: Final = "1"
_FORMAT_OF_JOINING: Final = "2"
"""The format of a file with `joining`: a release that does not know this field must not start with such a folder."""
PORTS_APART: Final = 10
"""The first worker's port, unless an option gives it, minus the node's port."""


@dataclass(frozen=True, slots=True)
class WorkersLayout:
    """The content of the file.

    Attributes:
        host: the host of the workers in the cluster map.
        ports: the port of each worker.
        tls_ports: the port for TLS of each worker; empty if the folder was made without TLS.
        bucket: the name of the first bucket.
        vbuckets: the number of its vbuckets.
        uuid: the uuid of the cluster; also identifies the workers of this folder.
        revision: the revision of the first map.
        has_map: True if the workers have all vbuckets from the beginning; False if they wait for the map of a cluster
            that they join.
        complete: True if each worker has its store, except those that are joining.
        joining: the number of workers, the last ones, that were added later and may not have a store yet.
    """

    host: str
    ports: tuple[int, ...]
    tls_ports: tuple[int, ...]
    bucket: str
    vbuckets: int
    uuid: str
    revision: int
    has_map: bool
    complete: bool = False
    joining: int = 0

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of each worker, as in the map."""
        return tuple(Address(self.host, port) for port in self.ports)

    @property
    def group(self) -> str:
        """The failure domain of the workers, if the operator names none."""
        return f"machine-{self.uuid[:8]}"

    def config(self, whole: NodeConfig, number: int) -> NodeConfig:
        """Return the settings of one worker, derived from those of the node."""
        share = max(whole.connection_memory_mib, whole.memory_mib // len(self.ports))
        return replace(
            whole,
            workers=1,
            data=whole.data / f"worker-{number}",
            vbuckets=self.vbuckets,
            port=self.ports[number],
            tls_port=self.tls_ports[number] if self.tls_ports else whole.tls_port,
            http_port=-1,
            group=whole.group or self.group,
            vbucket_state="none",
            memory_mib=share,
        )

    def first_map(self, group: str) -> ClusterMap:
        """Return the first map of the workers: all vbuckets, assigned in turn, without replicas."""
        count, servers = len(self.ports), self.addresses
        return ClusterMap(
            bucket=self.bucket,
            uuid=self.uuid,
            epoch=OWN_EPOCH + 1,
            rev=self.revision,
            servers=servers,
            chains=tuple((vb % count,) for vb in range(self.vbuckets)),
            tls_ports=dict(zip(servers, self.tls_ports, strict=False)),
            groups=dict.fromkeys(servers, group),
        )

    def check_store(self, folder: Path, number: int) -> None:
        """Raise CorruptStore if a worker's store is missing that must exist.

        A store that was created again would lack all acknowledged changes.
        """
        store = folder / f"worker-{number}" / STORE_NAME
        # Until all workers have served, a missing store means that the first start was interrupted, before any change
        # was acknowledged.
        is_founded = self.complete and number < len(self.ports) - self.joining
        if is_founded and self.has_map and not store.exists():
            raise CorruptStore(
                store, 0, "the file is missing, though this folder's workers were all there: put it back"
            )

    def save(self, folder: Path, disk: Disk | None = None) -> None:
        """Write the layout to the disk; it is durable on return.

        Raises:
            DiskFull, StorageError: it could not be written.
        """
        disk = disk or RealDisk()
        try:
            disk.make_directory(folder)
        except OSError as error:
            raise StorageError(f"{folder}: {error.strerror or error}") from error
        content = asdict(self)
        # Without that field, older releases can read the file; they can't while workers are joining.
        if not self.joining:
            del content["joining"]
        format_ = _FORMAT_OF_JOINING if self.joining else _FORMAT
        data = encode_text_file(_TITLE, format_, json.dumps(content).encode())
        WholeFile(disk, folder / NAME, folder / _NEXT_NAME, _FAILPOINTS).replace(data)


def count_of(config: NodeConfig) -> int:
    """Return the number of workers that the settings demand.

    0 stands for as many as the folder has: the number of cores may differ from that of an earlier start. In a new
    folder 0 stands for one worker per core.

    Raises:
        CorruptStore, StorageError: the file of workers is damaged, or can't be read.
    """
    if config.workers:
        return config.workers
    if (layout := load(config.data)) is not None:
        return len(layout.ports)
    if (config.data / STORE_NAME).exists():
        return 1
    return min(len(os.sched_getaffinity(0)), config.vbuckets or VBUCKETS_NEW)


def refuse_folder_of_workers(config: NodeConfig) -> None:
    """Raise OptionError if a folder belongs to several workers: a single process must not serve it."""
    if (layout := load(config.data)) is not None:
        raise OptionError("workers", 1, f"{len(layout.ports)}, which {config.data} was made with: give that number")


def layout_of(config: NodeConfig) -> WorkersLayout:
    """Return the layout of a folder, with as many workers as it had; at its first start plan and save the layout.

    Raises:
        OptionError: the folder was made without workers, or for other settings; or a port can't be bound.
        StorageError: the file of workers is damaged, or a worker's store is missing.
    """
    layout = load(config.data)
    if layout is None:
        _refuse_plain_store(config)
        layout = _planned(config)
        # Before any worker has a store, so that a start after an interruption makes the same map.
        layout.save(config.data)
    else:
        _make_durable(config.data)
    _refuse_others(config, layout)
    for number in range(len(layout.ports)):
        layout.check_store(config.data, number)
    return layout


def _make_durable(folder: Path) -> None:
    """Make the names of the files in a folder durable: this start relies on the layout and the list of users.

    If an earlier process died between renaming such a file and syncing the folder, the new name may be in the page
    cache only.

    Raises:
        StorageError: the folder can't be synced.
    """
    try:
        RealDisk().sync_directory(folder)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error


def _refuse_plain_store(config: NodeConfig) -> None:
    if (config.data / STORE_NAME).exists():
        way = "documents come into a folder of workers by headwater backup, or headwater load"
        allowed = f"1, which {config.data} was made with: give another --data for workers; {way}"
        raise OptionError("workers", config.workers, allowed)


def _refuse_others(config: NodeConfig, layout: WorkersLayout) -> None:
    folder = config.data
    for name, option_value, layout_value in (
        ("host", config.host, layout.host),
        ("bucket", config.bucket, layout.bucket),
        ("vbuckets", config.vbuckets or layout.vbuckets, layout.vbuckets),
    ):
        if option_value != layout_value:
            raise OptionError(name, option_value, f"{layout_value}, which the workers of {folder} were founded with")
    for name, port in _of_node(config).items():
        if port in (*layout.ports, *layout.tls_ports):
            raise OptionError(name, port, f"a port that none of the workers of {folder} has")
    if config.tls_certificate and not layout.tls_ports:
        raise OptionError(
            "tls-certificate", config.tls_certificate, f"possible yet for {folder}, whose workers have no ports for TLS"
        )


def _planned(config: NodeConfig) -> WorkersLayout:
    count, vbuckets = count_of(config), config.vbuckets or VBUCKETS_NEW
    if count > vbuckets:
        raise OptionError("workers", count, f"{vbuckets} or fewer, or --vbuckets: each serves a vbucket at least")
    ports, tls_ports = _ports(config, count)
    return WorkersLayout(
        host=config.host,
        ports=ports,
        tls_ports=tls_ports,
        bucket=config.bucket,
        vbuckets=vbuckets,
        uuid=secrets.token_hex(16),
        revision=time.time_ns() // 1_000_000,
        has_map=config.vbucket_state == "active",
    )


def _ports(config: NodeConfig, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ports of the workers, and their ports for TLS."""
    first = config.worker_port or (config.port and config.port + PORTS_APART)
    had = free_ports(config, first, count * (2 if config.tls_certificate else 1))
    return had[:count], had[count:]


def free_ports(config: NodeConfig, first: int, count: int) -> tuple[int, ...]:
    """Return ports for workers, all of which are free at this moment.

    Args:
        config: the node's settings.
        first: the first of consecutive ports; 0 for any ports.
        count: the number of ports.

    Raises:
        OptionError: one of the ports is taken, or is the node's own.
    """
    numbers = [first + at if first else 0 for at in range(count)]
    if first and (numbers[-1] > PORT["most"] or set(_of_node(config).values()) & set(numbers)):
        raise OptionError(
            "worker-port", first, f"the first of {count} ports that are nobody's: {first} to {numbers[-1]}"
        )
    with ExitStack() as sockets_open:
        sockets = [sockets_open.enter_context(bound("worker-port", config.host, number)) for number in numbers]
        return tuple(int(socket.getsockname()[1]) for socket in sockets)


def _of_node(config: NodeConfig) -> dict[str, int]:
    """Return the node's own ports, by the names of their options."""
    ports = {"port": config.port}
    if config.tls_certificate:
        ports["tls-port"] = config.tls_port
    if config.http_port >= 0:
        ports["http-port"] = config.http_port
    return ports


def load(folder: Path) -> WorkersLayout | None:
    """Return the layout in a folder; None if the folder has none.

    Raises:
        CorruptStore: the file of workers is damaged.
        StorageError: the file can't be read, or has a format of a later release.
    """
    path = folder / NAME
    try:
        data = RealDisk().read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    formats = [_FORMAT, _FORMAT_OF_JOINING]
    content = json.loads(decode_text_file(data, path, _TITLE, formats, "file of workers"))
    return WorkersLayout(**content | {name: tuple(content[name]) for name in ("ports", "tls_ports")})
