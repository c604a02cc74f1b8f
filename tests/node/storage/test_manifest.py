"""The manifest, byte by byte, and what is on disk when it changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore, StorageError
from headwater.node.storage.manifest import Entry, Manifest, ManifestFile
from headwater.testing.faults import FaultyDisk

FOLDER, PATH = Path("/store"), Path("/store/MANIFEST")
MANIFEST = Manifest(bytes(range(16)), 1024, (Entry(3, 0xA1, 4096), Entry(5, 0x0123456789ABCDEF, None)), 7, 6, None)
EXAMPLE = (
    b"headwater-store 2 0ddc83fca7676ab0\n"
    b'{"clean": null, "generation": 7, "member": false, "next_segment": 6, "segments": [{"bytes": 4096, "id": 3, '
    b'"salt": "00000000000000a1"}, {"bytes": null, "id": 5, "salt": "0123456789abcdef"}], "store": '
    b'"000102030405060708090a0b0c0d0e0f", "vbuckets": 1024}\n'
)
OF_BEFORE = (
    b"headwater-store 1 36cfecf61513b2a8\n"
    b'{"clean": null, "generation": 7, "next_segment": 6, "segments": [{"bytes": 4096, "id": 3, "salt": '
    b'"00000000000000a1"}, {"bytes": null, "id": 5, "salt": "0123456789abcdef"}], "store": '
    b'"000102030405060708090a0b0c0d0e0f", "vbuckets": 1024}\n'
)


def test_the_example_of_the_documentation() -> None:
    assert MANIFEST.encode() == EXAMPLE
    assert Manifest.decode(EXAMPLE, PATH) == MANIFEST


def test_a_manifest_of_before_memberships_is_read_and_written_as_what_we_write() -> None:
    read = Manifest.decode(OF_BEFORE, PATH)
    assert (read, read.encode()) == (MANIFEST, EXAMPLE)


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * (len(EXAMPLE) - 1)):
        wrong = bytearray(EXAMPLE)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StorageError):
            Manifest.decode(bytes(wrong), PATH)


def test_a_store_with_collections_is_of_a_format_of_its_own() -> None:
    made = replace(MANIFEST, collections=True)
    assert made.encode().startswith(b"headwater-store 3 ") and b'"collections": true' in made.encode()
    assert Manifest.decode(made.encode(), PATH) == made
    for bit in range(8 * 20):
        wrong = bytearray(made.encode())
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StorageError):
            Manifest.decode(bytes(wrong), PATH)


def test_an_empty_file_is_no_manifest() -> None:
    with pytest.raises(CorruptStore, match="not a manifest"):
        Manifest.decode(b"", PATH)


def test_a_change_is_durable_when_it_returns_and_all_or_nothing_before() -> None:
    for nth in range(1, 7):
        disk = FaultyDisk()
        disk.put(PATH, EXAMPLE)
        file = ManifestFile(disk, FOLDER, MANIFEST)
        disk.fail(nth, forever=True)
        try:
            file.change(lambda manifest: replace(manifest, next_segment=9))
        except OSError:
            assert file.content == MANIFEST
            allowed = {6, 9} if file.unsure else {6}
        else:
            allowed = {9}
        for seed in range(8):
            after = disk.crash(Random(seed))
            assert Manifest.decode(after.read(PATH), PATH).next_segment in allowed


def test_after_a_doubtful_change_settling_puts_the_one_we_mean_on_disk() -> None:
    disk = FaultyDisk()
    disk.put(PATH, EXAMPLE)
    file = ManifestFile(disk, FOLDER, MANIFEST)
    disk.fail(5)  # the sync of the folder
    with pytest.raises(OSError, match="Input/output"):
        file.change(lambda manifest: replace(manifest, next_segment=9))
    assert file.unsure
    file.settle()
    assert not file.unsure
    assert Manifest.decode(disk.crash(Random(1), lose=1.0).read(PATH), PATH).next_segment == 6


def test_segment_numbers_are_never_given_twice() -> None:
    disk = FaultyDisk()
    file = ManifestFile(disk, FOLDER, MANIFEST)
    assert [file.take_number(), file.take_number()] == [6, 7]
    file.change(lambda manifest: manifest)
    assert Manifest.decode(disk.read(PATH), PATH).next_segment == 8
