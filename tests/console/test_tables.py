import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headwater import testing
from headwater.console import tables
from headwater.console.tables import Head, MirrorTables
from headwater.lake.commit import BatchCommit, Record, commit
from headwater.lake.writer import TaskResult
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from tests.lake.support import Table

from .support import console, until_told, words


def heads(seqnos: dict[int, int | None]) -> dict[int, Head | None]:
    """Vbuckets that have been on one branch since they began."""
    return {vb: None if seqno is None else Head(seqno, [(1, 0)]) for vb, seqno in seqnos.items()}


def look(place: Path, bucket: str = "b", seqnos: dict[int, int | None] | None = None) -> tables.MirrorTable:
    made = MirrorTables((str(place),))
    [found] = asyncio.run(made.look(bucket, heads({0: 10, 1: 7} if seqnos is None else seqnos)))
    return found


def mirrored(
    place: Path, seqnos: dict[int, int], bucket: str = "b", rollbacks: int = 0, uuids: Mapping[int, int] | None = None
) -> Table:
    """A table whose record says that it holds so much; its last batch rolled so many vbuckets back."""
    table = Table(place)
    table.take(("a", 0, 1, "v"), ("b", 1, 1, "v"))
    before = table.record
    end = Offset({vb: Position(vb, (uuids or {}).get(vb, 1), seqno, seqno, seqno) for vb, seqno in seqnos.items()})
    then = Record(bucket, end.to_json(), before.batch + 1)
    written = TaskResult(table.log.state.version, counts={"mutations": 3, "deletions": 1, "rollbacks": rollbacks})
    commit(table.log, BatchCommit(before.digest, then, ("app", then.batch), [written]))
    return table


def test_a_table_tells_what_it_lacks_of_the_bucket_by_its_own_record(tmp_path: Path) -> None:
    mirrored(tmp_path, {0: 4, 1: 7})
    found = look(tmp_path)
    assert (found.problem, found.behind, found.worst, found.unknown) == ("", 6, (0, 6), 0)
    assert (found.facts["rows"], found.facts["batches"]) == (2, 2)
    assert (found.batches[0].mutations, found.batches[0].deletions, found.batches[0].operation) == (3, 1, "MIRROR")
    assert [batch.version for batch in found.batches] == [2, 1, 0]
    assert found.batches[2].mutations is None, "the commit that made the table counts no changes"
    assert found.rolled_back == ()


def test_a_rollback_is_found_in_the_history_of_the_table(tmp_path: Path) -> None:
    mirrored(tmp_path, {0: 10, 1: 7}, rollbacks=2)
    found = look(tmp_path)
    assert (found.behind, found.worst) == (0, None)
    assert [(batch.version, batch.rollbacks) for batch in found.rolled_back] == [(2, 2)]


def test_what_the_bucket_does_not_tell_makes_the_lag_unknown(tmp_path: Path) -> None:
    mirrored(tmp_path, {0: 4})
    found = look(tmp_path, seqnos={0: 10, 1: None})
    assert (found.behind, found.worst, found.unknown) == (None, (0, 6), 1)
    assert look(tmp_path, seqnos={}).behind is None


def test_a_folder_that_is_no_table_of_this_bucket_says_so(tmp_path: Path) -> None:
    assert "there is no table here" in look(tmp_path / "nothing").problem
    mirrored(tmp_path / "other", {}, bucket="other")
    assert "it mirrors the bucket other, not b" in look(tmp_path / "other").problem


def test_seqnos_that_went_back_are_no_negative_lag() -> None:
    held = {0: Position(0, 1, 9, 9, 9), 1: Position(1), 2: Position(2)}
    known = heads({0: 4, 1: 3, 2: None})
    assert tables.behind(held, known) == {0: 0, 1: 3, 2: None}
    assert (head := known[0]) and not head.is_on_lost_branch(held[0]), (
        "the seqno was asked for before the table's last batch"
    )


@pytest.mark.parametrize(
    ("log", "lacking", "parted"),
    [
        ([(2, 3), (1, 0)], 7, True),  # it has 4 to 8 of a branch that ended at 3
        ([(2, 8), (1, 0)], 2, False),
        ([(1, 0)], 2, False),
        ([(3, 0)], 10, True),  # of another bucket, or begun anew
    ],
)
def test_what_a_failover_took_back_is_lacking_however_high_the_seqno_of_the_table(
    tmp_path: Path, log: list[tuple[int, int]], lacking: int, parted: bool
) -> None:
    mirrored(tmp_path, {0: 8})
    [found] = asyncio.run(MirrorTables((str(tmp_path),)).look("b", {0: Head(10, log)}))
    assert (found.behind, found.parted) == (lacking, int(parted))


def test_the_page_tells_the_lag_and_not_where_the_nodes_are_silent(tmp_path: Path) -> None:
    with testing.node(vbuckets=2) as node:
        with node.client() as bucket:
            bucket.set_many({f"k{number}": "v" for number in range(50)})
            uuids = {vb: bucket.failover_log(vb)[0][0] for vb in (0, 1)}
        mirrored(tmp_path, {0: 1, 1: 1}, bucket="default", rollbacks=1, uuids=uuids)
        with console(node.url, lakes=(str(tmp_path), str(tmp_path / "none"))) as browser:
            page = words(browser.get("/mirrors").text)
            assert "lacks of the bucket, in changes 48" in page
            assert "took back what a failover had lost" in page
            assert "there is no table here" in page
            node.kill()
            until_told(browser, "/mirrors", "Stale.", "lacks of the bucket, in changes \u2013")


class Mount:
    """A folder's reading that hangs until the mount is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hanging: Path) -> None:
        self.back, self.count = threading.Event(), 0
        read = MirrorTables._read

        def reading(
            known: MirrorTables, place: str, bucket: str, seqnos: Mapping[int, Head | None]
        ) -> tables.MirrorTable:
            if place == str(hanging):
                self.count += 1
                self.back.wait(120)
            return read(known, place, bucket, seqnos)

        monkeypatch.setattr(MirrorTables, "_read", reading)


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mount]:
    mirrored(tmp_path / "hangs", {0: 4, 1: 7}, bucket="default")
    mirrored(tmp_path / "works", {0: 4, 1: 7}, bucket="default")
    made = Mount(monkeypatch, tmp_path / "hangs")
    yield made
    made.back.set()


def test_a_mount_that_hangs_holds_back_neither_the_other_tables_nor_the_next_page(mount: Mount, tmp_path: Path) -> None:
    async def look() -> None:
        known = MirrorTables((str(tmp_path / "hangs"), str(tmp_path / "works")), patience_seconds=0.2)
        for _ in range(2):
            async with asyncio.timeout(60):
                hangs, works = await known.look("default", heads({0: 10}))
            assert f"{hangs.place}: it has not answered for " in hangs.silent
            assert (hangs.facts, works.silent, works.behind) == ({}, "", 6)
        assert mount.count == 1, "one thread waits for it, however often pages are loaded"
        mount.back.set()
        known.patience_seconds = 60.0
        hangs, _ = await known.look("default", heads({0: 10}))
        assert (hangs.silent, hangs.behind) == ("", 6)
        mount.back.clear()
        known.patience_seconds = 0.2
        hangs, _ = await known.look("default", heads({0: 10}))
        assert hangs.silent, "it hangs again"
        assert hangs.behind == 6, "it stands as it was read last"

    asyncio.run(look())


def test_the_page_names_the_mirror_that_does_not_answer(mount: Mount, tmp_path: Path) -> None:
    lakes = (str(tmp_path / "hangs"), str(tmp_path / "works"))
    with testing.node(vbuckets=2) as node, console(node.url, lakes=lakes) as browser:
        browser.app.state.desk.tables.patience_seconds = 0.2  # type: ignore[attr-defined]
        page = words(browser.get("/mirrors").text)
        assert f"Not answering. {lakes[0]}: it has not answered for 0 s" in page
        assert page.count("lacks of the bucket") == 1, "the other one is shown"


def test_pages_that_are_loaded_at_once_share_a_reading_that_is_no_older_than_they(mount: Mount, tmp_path: Path) -> None:
    async def look() -> None:
        known = MirrorTables((str(tmp_path / "hangs"),), patience_seconds=60.0)
        first = asyncio.ensure_future(known.look("default", heads({0: 10})))
        while not mount.count:
            await asyncio.sleep(0.001)
        pages = [asyncio.ensure_future(known.look("default", heads({0: 12}))) for _ in range(20)]
        for _ in range(3):  # all have asked
            await asyncio.sleep(0)
        mount.back.set()
        assert [each.behind for each in await first] == [6]
        assert {page[0].behind for page in await asyncio.gather(*pages)} == {8}
        assert mount.count == 2

    asyncio.run(look())
