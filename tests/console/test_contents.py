from starlette.testclient import TestClient

from headwater import client, testing
from headwater.console.desk import Desk

from .support import console, until_told, words
from .test_actions import confirmed, plan, post, until_ended


def done(browser: TestClient, kind: str, typed: str = "", **fields: str) -> str:
    """Go from the form by the plan to the end of the work; return what the page of actions says of it."""
    status, page = plan(browser, kind, **fields)
    assert status == 200, words(page)
    status, told = post(browser, f"/actions/{kind}/begin", **confirmed(page, typed))
    assert status == 200, words(told)
    return until_ended(browser)


def test_a_collection_is_made_listed_looked_into_and_dropped(browser: TestClient, node: testing.Node) -> None:
    told = done(browser, "collection-create", name="shop.orders", max_ttl="86400")
    assert "Make collection shop.orders : done" in told
    page = browser.get("/collections").text
    assert "shop orders 8 86,400 s" in words(page)
    assert 'href="/documents?collection=shop.orders&amp;prefix="' in page
    with node.client() as bucket:
        bucket.collection("shop.orders").set("a", "of orders")
        bucket.set("a", "of the default one")
    assert "of orders" in browser.get("/documents?collection=shop.orders&key=a").text
    assert "of the default one" in browser.get("/documents?key=a").text
    _, page = plan(browser, "collection-drop", name="shop")
    assert "shop would be dropped with all documents of these" in words(page)
    assert "shop.orders, id 8 ; one that is made anew has another" in words(page)
    assert post(browser, "/actions/collection-drop/begin", **confirmed(page, "orders"))[0] == 400
    assert "Drop scope shop : done" in done(browser, "collection-drop", "shop", name="shop")
    assert "shop.orders" not in browser.get("/collections").text
    assert "There is nothing to do" in plan(browser, "collection-create", name="_default._default")[1]


def test_names_and_limits_that_can_not_be_are_refused_on_the_page(browser: TestClient) -> None:
    for kind, fields, told in (
        ("collection-create", {"name": ""}, "name"),
        ("collection-create", {"name": "shop", "max_ttl": "5"}, "a collection"),
        ("collection-create", {"name": "shop.a", "max_ttl": "-5"}, "a whole number"),
        ("collection-drop", {"name": "nowhere"}, "there is no nowhere"),
        ("bucket-create", {"name": "default"}, "which are there"),
        ("bucket-drop", {"name": "nowhere"}, "there is no bucket nowhere"),
        ("bucket-drop", {"name": "default"}, "default is the first bucket"),
        ("bucket-quota", {"name": "default", "quota_mib": "much"}, "a number of MiB"),
        ("init", {"nodes": ""}, "at least one node"),
        ("fold", {"table": "/etc"}, "--lake"),
    ):
        status, page = plan(browser, kind, **fields)
        assert (status, told in words(page)) == (400, True), (kind, words(page))


def test_a_name_that_no_collection_can_have_fails_in_its_job_and_not_with_a_traceback(browser: TestClient) -> None:
    assert "Make collection shop.a b : failed" in done(browser, "collection-create", name="shop.a b")


def test_a_bucket_is_made_given_a_quota_and_dropped(browser: TestClient) -> None:
    assert "Make bucket carts : done" in done(browser, "bucket-create", name="carts", vbuckets="4", quota_mib="2048")
    assert "carts 2,048 MiB" in words(browser.get("/buckets").text)
    assert "Quota of bucket carts: 4,096 MiB : done" in done(browser, "bucket-quota", name="carts", quota_mib="4096")
    assert "carts 4,096 MiB" in words(browser.get("/buckets").text)
    assert "Drop bucket carts : done" in done(browser, "bucket-drop", "carts", name="carts")
    page = words(browser.get("/buckets").text)
    assert "carts" not in page
    assert "default the disk this console shows it; the first bucket, which can't be dropped" in page


def test_nodes_that_are_in_no_cluster_become_one() -> None:
    with testing.node(vbuckets=4) as node, console(node.url) as browser:
        assert "in no cluster" in browser.get("/").text
        told = done(browser, "init", "yes", nodes=node.address, replicas="0")
        assert f"Make a cluster of {node.address} : done" in told
        assert "in no cluster" not in until_told(browser, "/", "All nodes answer")
        _, page = plan(browser, "tls", encrypted="off")
        assert "call each other without TLS now, and then without TLS" in words(page)
        assert "speaks no TLS" in done(browser, "tls", "yes", encrypted="on")


def test_pages_of_a_bucket_whose_nodes_are_away_say_so() -> None:
    with console("couchbase://127.0.0.1:1/default") as browser:
        for path in ("/collections", "/buckets", "/users"):
            answer = browser.get(path)
            assert answer.status_code == 502
            assert 'role="alert"' in answer.text
        desk: Desk = browser.app.state.desk  # type: ignore[attr-defined]
        assert desk.foreman.running is None


def test_a_page_about_a_bucket_that_was_made_anew_drops_and_empties_none_until_it_is_shown(
    browser: TestClient, node: testing.Node
) -> None:
    done(browser, "bucket-create", name="twice", vbuckets="4")
    with console(f"couchbase://{node.address}/twice") as other:
        pages = {kind: plan(browser if name else other, kind, **name)[1] for kind, name in HARMING.items()}
        done(browser, "bucket-drop", "twice", name="twice")
        done(browser, "bucket-create", name="twice", vbuckets="4")
        with client.connect(f"couchbase://{node.address}/twice") as bucket:
            bucket.set("a", "of the new one")
            for kind, page in pages.items():
                asked = browser if HARMING[kind] else other
                status, told = post(asked, f"/actions/{kind}/begin", **confirmed(page, "twice"))
                until_ended(asked)
                assert status == 409, kind
                assert "this is the plan now" in words(told)
                assert "one that is made anew has another" in words(told)
                assert bucket.get("a").value == b"of the new one", kind
    done(browser, "bucket-drop", "twice", name="twice")


HARMING: dict[str, dict[str, str]] = {"bucket-drop": {"name": "twice"}, "flush": {}}
