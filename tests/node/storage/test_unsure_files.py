import asyncio
import errno
import logging
from pathlib import Path

import pytest

from headwater.errors import UnsureFile
from headwater.node.storage.text_file import WholeFile
from headwater.node.storage.unsure_files import UnsureFiles
from headwater.testing.faults import FaultyDisk

PATH = Path("/data/USERS")


async def settled(files: UnsureFiles) -> None:
    files.look()
    assert files._settling is not None
    await files._settling


def test_a_file_that_could_not_be_put_back_is_told_once_and_put_back_when_the_disk_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        disk = FaultyDisk()
        disk.make_directory(PATH.parent)
        disk.put(PATH, b"before")
        file = WholeFile(disk, PATH, PATH.with_suffix(".new"), ("users.before_rename", "users.after_rename"))
        files = UnsureFiles(asyncio.get_running_loop(), lambda: [file])
        files.look()
        assert files.count() == 0 and not caplog.records
        disk.fail(5, errno.EIO, forever=True)
        with pytest.raises(UnsureFile):
            file.replace(b"refused")
        for _ in range(2):
            await settled(files)
        assert files.count() == 1
        disk.heal()
        await settled(files)
        assert files.count() == 0 and disk.read(PATH) == b"before"

    caplog.set_level(logging.INFO, "headwater.node")
    asyncio.run(story())
    assert [record.event for record in caplog.records] == ["file.unsure", "file.settled"]  # type: ignore[attr-defined]
