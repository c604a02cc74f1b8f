"""The real disk does what the store relies on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headwater.errors import StorageError, StoreLocked
from headwater.node.storage.disk import RealDisk
from headwater.node.storage.store import Store
from tests.node.storage.model import History, check_documents, check_view, commit, compact, filled, open_store


def test_what_is_written_is_seen_through_the_map_at_once(tmp_path: Path) -> None:
    file = RealDisk().create(tmp_path / "f", 8192)
    mapped = file.map()
    file.write([b"ab", memoryview(b"cd")], 4095)
    assert mapped[4094:4100].tobytes() == b"\0abcd\0"
    assert file.size() == 8192
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_the_end_of_data_is_found_behind_holes_and_reserved_room(tmp_path: Path) -> None:
    file = RealDisk().create(tmp_path / "f", 1 << 20)
    assert file.data_end(0) == 0
    file.reserve(0, 1 << 16)
    file.write([b"x"], 5000)
    file.write([b"x"], 300_000)
    file.sync()
    end = file.data_end(5001)
    assert 300_001 <= end < 300_000 + (1 << 16)
    assert file.data_end(end) == end


def test_a_cut_file_is_zeros_where_it_is_extended_again(tmp_path: Path) -> None:
    file = RealDisk().create(tmp_path / "f", 8192)
    mapped = file.map()
    file.write([b"x" * 100], 50)
    file.truncate(60)
    file.truncate(8192)
    assert mapped[50:70].tobytes() == b"x" * 10 + bytes(10)


def test_a_removed_file_is_readable_as_long_as_it_is_mapped(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.create(tmp_path / "f", 4096)
    file.write([b"still here"], 0)
    mapped = file.map()
    file.close()
    disk.remove(tmp_path / "f")
    assert mapped[:10].tobytes() == b"still here"
    assert disk.names(tmp_path) == []


def test_another_process_is_told_who_has_the_store(tmp_path: Path) -> None:
    store = open_store(RealDisk(), path=tmp_path)
    ask = f"from headwater.node.storage.store import Store; Store.open({str(tmp_path)!r}, vbuckets=2)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert "StoreLocked" in done.stderr
    assert "has this store open; stop it, or choose another directory" in done.stderr
    with pytest.raises(StoreLocked, match="process "):
        open_store(RealDisk(), path=tmp_path)
    store.close()
    open_store(RealDisk(), path=tmp_path).close()


def test_a_folder_that_can_not_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="choose a folder that can be written"):
        Store.open(tmp_path / "file" / "store")


def test_a_store_on_the_real_disk_through_a_whole_life(tmp_path: Path) -> None:
    store, history = open_store(RealDisk(), path=tmp_path), History()
    for number in range(300):
        key, value = b"%d" % (number % 40), b"v" * (number % 90)
        history.add(store.staging.mutation(1, key, value, cas=1, rev_seqno=1), key, value)
        if number % 10 == 9:
            commit(store)
    with store.view(1) as old:
        before = filled(old)
        compact(store)
    check_view(store, 1, history)
    assert len(list(tmp_path.glob("*.log"))) == 2
    store.close()
    store = open_store(RealDisk(), path=tmp_path)
    assert store.clean
    check_documents(store, 1, history)
    with store.view(1) as view:
        assert filled(view) == before
    store.close()


def test_a_document_of_twenty_mebibytes(tmp_path: Path) -> None:
    value = np.random.default_rng(1).bytes(20 << 20)
    store = Store.open(tmp_path, vbuckets=2)
    for key in (b"large", b"larger", b"large"):
        store.staging.mutation(0, key, value, cas=1, rev_seqno=1)
        commit(store)
    compact(store)
    store.close()
    store = Store.open(tmp_path, vbuckets=2)
    found = store.document(0, b"large")
    assert found is not None
    assert found.value == value
    with store.view(0) as view:
        assert view.count() == (2, 2 * (20 << 20) + 2 * 55 + 11)
        assert view.fill(np.zeros(1 << 20, np.uint8), 1).plain
        assert len(view.next_frame()) > 20 << 20
    store.close()
