import json

from tests.cli.support import Run


def test_the_branches_of_a_vbucket_are_shown_newest_first(run: Run) -> None:
    vb_uuid, seqno = run("failover-log", "3")[1].split()
    assert len(vb_uuid) == 16 and seqno == "0"
    assert json.loads(run("failover-log", "3", "--json")[1]) == [{"vb_uuid": vb_uuid, "seqno": 0}]


def test_a_vbucket_that_is_not_there_is_told_in_one_line(run: Run) -> None:
    status, shown, told = run("failover-log", "16")
    assert (status != 0, shown) == (True, "")
    assert told.startswith("headwater: ") and told.count("\n") == 1
