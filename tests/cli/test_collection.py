"""`headwater collection`: made, listed and dropped on one node."""

import json

from tests.cli.support import Run


def test_collections_are_made_listed_and_dropped(run: Run) -> None:
    assert run("collection", "create", "shop.orders")[:2] == (0, "shop.orders is there; manifest 2\n")
    assert run("collection", "create", "shop.carts", "--max-ttl", "60")[0] == 0
    assert run("collection", "create", "shop.orders")[1] == "shop.orders is there; manifest 3\n"
    assert run("collection", "create", "empty")[0] == 0
    assert run("collection", "list")[1].splitlines() == [
        "_default._default 0",
        "shop.orders 8",
        "shop.carts 9 60 s",
        "empty",
    ]
    told = json.loads(run("collection", "list", "--json")[1])
    assert (told["uid"], [scope["name"] for scope in told["scopes"]]) == ("4", ["_default", "shop", "empty"])
    assert run("collection", "drop", "shop.orders", "--yes")[:2] == (0, "shop.orders is dropped; manifest 5\n")
    assert run("collection", "drop", "shop", "--yes")[0] == run("collection", "drop", "empty", "-y")[0] == 0
    assert run("collection", "list")[1] == "_default._default 0\n"


def test_what_can_not_be_is_said_in_one_line(run: Run) -> None:
    for arguments, said in (
        (("create", "shop.$"), "can't name a collection"),
        (("drop", "none", "--yes"), 'Scope with name "none" is not found'),
        (("drop", "_default", "--yes"), "not allowed"),
        (("create", "shop", "--max-ttl", "5"), "a scope has none"),
    ):
        status, _, problem = run("collection", *arguments)
        assert status != 0 and said in problem, problem
