"""`headwater bucket`: made, listed and dropped on one node."""

import json

from tests.cli.support import Run


def test_buckets_are_made_listed_and_dropped(run: Run) -> None:
    assert run("bucket", "list")[:2] == (0, "default\n")
    assert run("bucket", "create", "orders", "--vbuckets", "4")[:2] == (0, "orders is there, on 1 node\n")
    assert run("bucket", "create", "carts", "--quota-mib", "64")[0] == 0
    assert json.loads(run("bucket", "list", "--json")[1]) == ["default", "orders", "carts"]
    assert run("bucket", "drop", "orders", "--yes")[:2] == (0, "orders is dropped, on 1 node\n")
    assert run("bucket", "drop", "carts", "-y")[0] == 0
    assert run("bucket", "list")[1] == "default\n"


def test_a_bucket_that_can_not_be_is_said_in_one_line(run: Run) -> None:
    for arguments, said in (
        (("create", "default"), 'there is a bucket "default"'),
        (("create", "a/b"), "a name of 1 to 100 letters"),
        (("create", "orders", "--vbuckets", "3"), "a power of two"),
        (("create", "orders", "--quota-mib", "1"), "64 is the least"),
        (("drop", "orders", "--yes"), "there is no such bucket"),
        (("drop", "default", "--yes"), "the node was started with"),
    ):
        status, _, problem = run("bucket", *arguments)
        assert status != 0 and said in problem and "Traceback" not in problem, problem


def test_a_quota_is_changed_and_printed(run: Run) -> None:
    assert run("bucket", "create", "carts", "--vbuckets", "4", "--quota-mib", "64")[0] == 0
    assert run("bucket", "quota", "carts", "128")[:2] == (0, "carts may take 128 MiB, on 1 node\n")
    assert run("bucket", "quota", "carts")[1].endswith(": 128 MiB\n")
    assert run("bucket", "quota", "carts", "0")[:2] == (0, "carts may take the disk, on 1 node\n")
    assert run("bucket", "quota", "carts")[1].endswith(": the disk\n")
    for arguments, said in (
        (("carts", "1"), "64 is the least"),
        (("nobodys", "100"), "nobodys"),
        (("default", "100"), "the disk is its quota"),
    ):
        status, _, problem = run("bucket", "quota", *arguments)
        assert status != 0 and said in problem and "Traceback" not in problem, problem
    assert run("bucket", "drop", "carts", "--yes")[0] == 0


def test_a_history_is_changed_and_printed(run: Run) -> None:
    assert run("bucket", "history", "default", "--seconds", "1h", "--mib", "1GiB")[:2] == (
        0,
        "default keeps 3600 s and at most 1024 MiB, on 1 node\n",
    )
    assert run("bucket", "history", "default")[1].endswith(": 3600 s and at most 1024 MiB\n")
    for arguments, said in (
        (("default", "--seconds", "-1"), "--seconds"),
        (("default", "--mib", "much"), "--mib"),
        (("default", "--seconds", "5000000000"), "4294967295 is the most"),
        (("nobodys", "--seconds", "5"), "nobodys"),
    ):
        status, _, problem = run("bucket", "history", *arguments)
        assert status != 0 and said in problem and "Traceback" not in problem, problem
    assert run("bucket", "history", "default", "--seconds", "0", "--mib", "0")[0] == 0
