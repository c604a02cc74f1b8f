import json

from headwater import testing
from tests.cli.support import Run


def test_the_seqnos_of_all_or_some_vbuckets_are_shown(run: Run) -> None:
    run("set", "counted", "v")
    plain = dict(line.split() for line in run("seqnos")[1].splitlines())
    assert len(plain) == 16 and sum(map(int, plain.values())) > 0
    assert json.loads(run("seqnos", "--json", "--vbuckets", "0-3")[1]) == {name: int(plain[name]) for name in "0123"}


def test_a_vbucket_counts_all_of_its_collections_and_each_may_be_asked_for(run: Run) -> None:
    with testing.node(vbuckets=1) as node:
        at = ("--node", node.url)
        for name in ("shop.orders", "shop.carts"):
            assert run("collection", "create", name, *at)[0] == 0
        run("set", "k", "v", *at)
        for _ in range(2):
            run("set", "k", "v", "--collection", "shop.orders", *at)
        assert run("seqnos", *at)[1] == "0 6\n"  # a scope, two collections, three changes
        assert run("seqnos", "--scope", "shop", *at)[1] == "0 shop.carts 3\n0 shop.orders 6\n"
        told = json.loads(run("seqnos", "--collections", "shop.orders,_default._default", "--json", *at)[1])
        assert told == {"_default._default": {"0": 4}, "shop.orders": {"0": 6}}
        status, _, problem = run("seqnos", "--collections", "shop.shoes", *at)
        assert status == 1 and "there is no collection shop.shoes" in problem
        assert run("seqnos", "--collections", "all", "--scope", "shop", *at)[0] == 2
