"""Naming nodes, and how work on them is stopped."""

import asyncio
import os
import signal

import pytest
import typer

from headwater.cli.cluster.running import Place, addresses, agreed, run, table_of
from headwater.cli.stopping import Stopped
from headwater.cluster.work import WorkPlan
from headwater.errors import ClusterError, ConnectionLost, OptionError
from headwater.tls.settings import TlsSettings

HERE = Place("default", None)


def test_nodes_are_named_by_address_or_url():
    assert addresses(["10.0.0.1:11210", "couchbase://10.0.0.2:1/default", "10.0.0.1:11210"]) == (
        [("10.0.0.1", 11210), ("10.0.0.2", 1)],
        HERE,
    )
    assert addresses([]) == ([], HERE)
    found = addresses(["couchbases://a?tls_verify=chain", "couchbases://b:1?tls_verify=chain"])
    assert found == ([("a", 11207), ("b", 1)], Place("default", TlsSettings(verify="chain")))


def test_nodes_of_different_buckets_are_refused():
    with pytest.raises(typer.BadParameter, match="beer, default"):
        addresses(["a:1", "b:2/beer"])
    with pytest.raises(OptionError):
        addresses(["a:x"])


def send_myself(number):
    os.kill(os.getpid(), number)


def test_a_signal_ends_work_that_does_not_heed_it():
    async def work(_members, _stop):
        send_myself(signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(Stopped) as stopped:
        run(work, HERE, None, None)
    assert stopped.value.signal == signal.SIGTERM


def test_an_error_is_told_once_whatever_was_asked_beside_it(caplog):
    """A node that does not answer is asked several things at once; the first failure is the command's."""

    async def fails_late():
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionLost("10.0.0.1:11210", "connection refused")

    async def fails():
        raise ClusterError("10.0.0.1:11210 does not answer", "start it")

    async def work(_members, _stop):
        await asyncio.gather(fails_late(), fails())

    with pytest.raises(ClusterError):
        run(work, HERE, None, None)
    assert caplog.records == []


def test_work_that_heeds_the_first_signal_comes_to_its_end():
    async def work(_members, stop):
        stop.gently = True
        send_myself(signal.SIGINT)
        while not stop():
            await asyncio.sleep(0)

    with pytest.raises(Stopped):
        run(work, HERE, None, None)


def test_a_second_signal_does_not_wait():
    async def work(_members, stop):
        stop.gently = True
        send_myself(signal.SIGINT)
        while not stop():
            await asyncio.sleep(0)
        send_myself(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(Stopped):
        run(work, HERE, None, None)


def test_what_was_done_before_the_signal_came_is_done():
    async def work(_members, stop):
        stop.gently = True
        send_myself(signal.SIGINT)
        while not stop():
            await asyncio.sleep(0)
        return "done"

    before = signal.getsignal(signal.SIGINT)
    assert run(work, HERE, None, None) == "done"
    assert signal.getsignal(signal.SIGINT) is before


def test_tables_begin_with_the_node():
    assert [column.header for column in table_of("title", "active", "").columns] == ["node", "active", ""]


def asked(is_empty=False, **options):
    """Whether the work begins, and what was shown."""
    shown = []
    plan = WorkPlan(is_empty=is_empty)
    options = {"dry_run": False, "yes": False} | options
    return agreed(plan, shown.append, "Begin?", **options), len(shown)


def test_a_plan_without_work_is_not_shown_and_nothing_is_asked(capsys):
    assert asked(is_empty=True) == (False, 0)
    assert capsys.readouterr().out == "there is nothing to do\n"


def test_a_dry_run_ends_with_the_plan():
    assert asked(dry_run=True, yes=True) == (False, 1)


def test_who_said_yes_beforehand_is_not_asked(monkeypatch):
    monkeypatch.setattr(typer, "confirm", lambda question, abort: pytest.fail("asked"))
    assert asked(yes=True) == (True, 1)


def test_a_no_ends_the_command(monkeypatch):
    def no(question, abort):
        assert (question, abort) == ("Begin?", True)
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    with pytest.raises(typer.Abort):
        asked()
