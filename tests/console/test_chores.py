import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.client.routing import Address, parse
from headwater.cluster.members import Members
from headwater.cluster.work import FailOver
from headwater.console.chores import requested_work
from headwater.console.desk import ConsoleSettings
from headwater.console.work import Job
from headwater.errors import OptionError, TableError
from headwater.lake.commit import DOMAIN
from headwater.lake.log import TableLog, creation, record
from headwater.lake.places import store_of
from headwater.lake.shape import fields
from headwater.pipelines.tasks import SEED as INDEX_SEED
from tests.lake.support import SEED, Table

from .support import console, words
from .test_contents import done, plan

SETTINGS = ConsoleSettings(parse("couchbase://h:1/default"))


def test_work_is_read_from_its_form_and_named_by_what_it_does() -> None:
    asked = requested_work("init", {"nodes": "a:1 b:2", "replicas": "1"}, SETTINGS)
    assert (asked.KIND, asked.title, asked.confirmation("default")) == ("init", "Make a cluster of a:1, b:2", "yes")
    asked = requested_work("collection-drop", {"name": "shop.carts"}, SETTINGS)
    assert (asked.title, asked.confirmation("default")) == ("Drop collection shop.carts", "shop.carts")
    assert requested_work("bucket-create", {"name": "b"}, SETTINGS).confirmation("default") == ""
    assert requested_work("failover", {"dead": "a:1"}, SETTINGS) == FailOver((Address("a", 1),))
    with pytest.raises(OptionError):
        requested_work("demolition", {}, SETTINGS)


def test_a_table_is_folded_and_cleaned_up_only_where_the_console_was_given_it(tmp_path: Path) -> None:
    log = TableLog(store_of(tmp_path))
    begun = record(DOMAIN, {"v": 1, "bucket": "b", "end": {}, "batch": 0})
    assert log.commit([*creation(fields(), {INDEX_SEED: SEED.hex()}, "b"), begun], "CREATE TABLE")
    table = Table(tmp_path)
    for number in range(12):
        table.take((f"k{number}", number, 1, "v"))
    before = len(table.log.refresh().files)
    with console("couchbase://127.0.0.1:1/b", lakes=(str(tmp_path),)) as browser:
        assert f"of {before} files would be folded" in words(plan(browser, "fold", table=str(tmp_path))[1])
        assert "files: the table had" in done(browser, "fold", table=str(tmp_path))
        assert len(table.log.refresh().files) < before
        assert "There is nothing to do" in plan(browser, "fold", table=str(tmp_path))[1]
        assert "There is nothing to do" in plan(browser, "vacuum", table=str(tmp_path))[1]
        assert plan(browser, "vacuum", table="/")[0] == 400


def test_a_table_whose_mount_hangs_holds_none_of_the_threads_in_which_hosts_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back, begun, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def hang(place: str) -> None:
        threads.append(threading.current_thread())
        begun.set()
        back.wait(120)
        raise TableError(place, "it is gone")

    async def run() -> None:
        monkeypatch.setattr("headwater.pipelines.tables.open_table", hang)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        settings = ConsoleSettings(parse("couchbase://h:1/default"), lakes=("/mnt/lake",))
        work = requested_work("fold", {"table": "/mnt/lake"}, settings)
        job = asyncio.ensure_future(work.run(Members(), [], Job("fold", work.title, 0.0)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        try:
            await asyncio.wait_for(asyncio.to_thread(lambda: None), 5)
        finally:
            back.set()
        with pytest.raises(TableError, match="it is gone"):
            await job
        assert threads[0].daemon, "a mount that hangs for good does not keep the console from ending"

    asyncio.run(run())
