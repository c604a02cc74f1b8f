"""A folder says how many workers it has, where they are, and what they begin with."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.errors import CorruptStore, OptionError, StorageError
from headwater.node.config import NodeConfig
from headwater.node.storage.disk import RealDisk
from headwater.node.workers.layout import WorkersLayout, count_of, layout_of, load

LAYOUT = WorkersLayout("127.0.0.1", (1, 2, 3), (4, 5, 6), "default", 16, "ab" * 16, revision=7, has_map=True)


def test_the_first_map_gives_each_worker_as_many_vbuckets_as_can_be_in_one_group() -> None:
    first = LAYOUT.first_map("rack-1")
    assert [len(first.held_by(address)[0]) for address in LAYOUT.addresses] == [6, 5, 5]
    assert set(first.groups.values()) == {"rack-1"} and first.version == (2, 7)
    assert dict(first.tls_ports) == dict(zip(LAYOUT.addresses, (4, 5, 6), strict=True))


def test_a_worker_has_the_settings_of_its_node_and_what_is_its_own() -> None:
    whole = NodeConfig(workers=3, data=Path("d"), memory_mib=600, purge_age_seconds=5, tls_certificate="c")
    config = LAYOUT.config(whole, 1)
    assert (config.data, config.port, config.tls_port, config.workers) == (Path("d/worker-1"), 2, 5, 1)
    assert (config.memory_mib, config.group, config.purge_age_seconds) == (200, "machine-abababab", 5)
    assert LAYOUT.config(replace(whole, group="rack-1", memory_mib=64), 0).group == "rack-1"


def test_what_was_saved_is_read_and_what_was_garbled_is_refused(tmp_path: Path) -> None:
    LAYOUT.save(tmp_path / "new")
    path = tmp_path / "new" / "WORKERS"
    assert load(tmp_path / "new") == LAYOUT and load(tmp_path) is None
    path.write_bytes(path.read_bytes().replace(b'"bucket"', b'"Bucket"'))
    with pytest.raises(CorruptStore):
        load(tmp_path / "new")


def test_ports_are_those_behind_the_first_or_free_ones(tmp_path: Path) -> None:
    free = layout_of(NodeConfig(workers=3, port=0, vbuckets=16, data=tmp_path / "a"))
    assert len(set(free.ports)) == 3 and free.tls_ports == ()
    for port, worker_port in ((65530, 0), (11210, 11209), (11210, 65534)):
        with pytest.raises(OptionError, match="worker-port"):
            layout_of(NodeConfig(workers=3, port=port, worker_port=worker_port, vbuckets=16, data=tmp_path / "b"))
    assert not (tmp_path / "b").exists()


def test_no_workers_mean_one_a_core_and_never_more_than_vbuckets() -> None:
    assert count_of(NodeConfig()) == 1
    assert count_of(NodeConfig(workers=0)) == len(os.sched_getaffinity(0))
    assert count_of(NodeConfig(workers=0, vbuckets=1)) == 1


def test_no_workers_mean_those_of_the_folder_whatever_cores_there_are_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    config = NodeConfig(workers=0, port=0, vbuckets=16, data=tmp_path / "a")
    founded = layout_of(config)
    assert len(founded.ports) == 3
    for cores in ({0}, {0, 1}, set(range(8))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        assert count_of(config) == 3 and layout_of(config) == founded
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "MANIFEST").touch()
    assert count_of(replace(config, data=tmp_path / "b")) == 1, "it was made without workers, and stays so"


def test_workers_go_on_with_the_vbuckets_of_their_folder(tmp_path: Path) -> None:
    founded = layout_of(NodeConfig(workers=2, port=0, vbuckets=16, data=tmp_path))
    config = NodeConfig(workers=2, port=0, data=tmp_path)
    assert founded.config(config, 1).vbuckets == 16
    with pytest.raises(OptionError, match="16, which the workers"):
        layout_of(replace(config, vbuckets=32))


def test_a_new_folder_has_a_vbucket_for_each_worker(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="128 or fewer, or --vbuckets"):
        layout_of(NodeConfig(workers=129, port=0, data=tmp_path))
    assert layout_of(NodeConfig(workers=3, port=0, data=tmp_path)).vbuckets == 128


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": 17, "vbuckets": 16}, "workers"),
        ({"workers": 2, "host": "0.0.0.0"}, "host"),
        ({"workers": 2, "tls_certificate": "c", "without_tls": "loopback"}, "without-tls"),
    ],
)
def test_what_workers_can_not_be_is_an_error_of_the_option(options: dict[str, object], named: str) -> None:
    with pytest.raises(OptionError) as caught:
        NodeConfig(**options)  # type: ignore[arg-type]
    assert caught.value.name == named


def test_a_start_makes_durable_what_it_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier process may have died between the rename of the layout, or of the users, and the sync of the folder.

    A power cut would then take back what workers have acknowledged writes under; their stores sync their own folders.
    """
    config = NodeConfig(workers=2, port=0, vbuckets=16, data=tmp_path)
    layout_of(config)
    synced = list[Path]()
    sync = RealDisk.sync_directory

    def watched(disk: RealDisk, folder: Path) -> None:
        synced.append(folder)
        sync(disk, folder)

    monkeypatch.setattr(RealDisk, "sync_directory", watched)
    layout_of(config)
    assert synced == [tmp_path]

    def refuses(disk: RealDisk, folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(RealDisk, "sync_directory", refuses)
    with pytest.raises(StorageError, match="Input/output error"):
        layout_of(config)


def test_a_folder_is_served_as_it_was_founded(tmp_path: Path) -> None:
    config = NodeConfig(workers=2, port=0, vbuckets=16, data=tmp_path)
    founded = layout_of(config)
    assert layout_of(config) == founded
    for change in ({"host": "127.0.0.2"}, {"bucket": "b"}, {"vbuckets": 8}, {"tls_certificate": "c"}):
        with pytest.raises(OptionError):
            layout_of(replace(config, **change))
    for name in ("port", "http_port"):
        with pytest.raises(OptionError) as caught:
            layout_of(replace(config, **{name: founded.ports[1]}))
        assert caught.value.name == name.replace("_", "-"), "it is a worker's"
    assert founded.config(replace(config, http_port=0), 1).http_port == -1, "the node has it, not each worker"
    replace(founded, complete=True).save(tmp_path)
    with pytest.raises(CorruptStore, match="put it back"):
        layout_of(config)
