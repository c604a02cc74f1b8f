import html
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client import KeyNotFound, WriteWithMeta
from headwater.console.desk import PAGES
from headwater.console.editing import EDIT_BYTES_MAX, key_field
from headwater.node.users.file import UsersFile
from headwater.wire import xattr
from tests.cluster.nodes import at, empty_nodes, init

from .support import ORIGIN, SECRETS, console, until_told, words
from .test_contents import done


def at_key(key: bytes, **more: str) -> str:
    text, form = key_field(key)
    return "/documents?" + urlencode({"key": text, "form": form.value} | more)


def fields_of(page: str) -> dict[str, str]:
    """Return what the form that stores a document would send if nothing were typed; as a browser reads it."""
    form = re.search(r'<form method="post" action="/documents/store".*?</form>', page, re.DOTALL)
    assert form, page
    inputs = re.findall(r'<input(?! type="checkbox")[^>]*name="(\w+)" value="([^"]*)"', form[0])
    area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form[0], re.DOTALL)  # the first line end is HTML's own
    assert area
    fields = {name: html.unescape(value) for name, value in inputs}
    value = html.unescape(area[1]).replace("\n", "\r\n")
    chosen = re.search(r'<select name="expiry"><option value="(\w+)"', form[0])
    assert chosen
    return fields | {"value": value, "expiry": chosen[1]}


def send(browser: TestClient, fields: dict[str, str], to: str = "store") -> tuple[int, str]:
    answer = browser.post(f"/documents/{to}", data=fields, headers=ORIGIN)
    return answer.status_code, words(answer.text)


# --------------------------------------------------------------------------- cluster and vbuckets


def test_the_cluster_page_tells_nodes_and_owners(browser: TestClient, node: testing.Node) -> None:
    page = browser.get("/").text
    assert f"{node.address} yes 16 0 0 0" in words(page)
    assert page.count('<rect class="owner0"') == 16 + 1
    assert "in no cluster" in page


def test_a_cluster_with_a_node_away_is_told_as_what_it_is() -> None:
    with empty_nodes(2) as (one, two):
        init(one, two, replicas=1)
        with console(one.url) as browser:
            page = words(browser.get("/").text)
            assert "All nodes answer, every vbucket has one owner" in page
            assert f"{at(one)[0]} yes 8 8 0 0" in page
            two.kill()
            page = words(until_told(browser, "/", f"{two.address} does not answer"))
            assert re.search(rf"{two.address} no : .* It said last at [-\d]+T[\d:]+Z, .* ago: 16 vbuckets", page)
            assert "All nodes answer" not in page
            troubled = words(browser.get("/vbuckets?only=trouble").text)
            assert "1 to 16 of 16" in troubled
            row = words(browser.get("/vbuckets?owner=" + two.address).text)
            assert "1 to 8 of 8" in row
            assert f"{two.address} does not answer" in row


def test_a_node_that_is_gone_leaves_stale_figures_that_say_so() -> None:
    with testing.node(vbuckets=4) as node, console(node.url) as browser:
        assert "As of" in words(browser.get("/").text)
        node.kill()
        page = until_told(browser, "/", "Stale.")
        assert re.search(r"No answer now: .*What stands here was said at [-\d]+T[\d:]+Z, .* ago", words(page))
        assert "All nodes answer" not in page


def test_a_bucket_of_which_no_node_ever_answered_shows_no_figures() -> None:
    with console("couchbase://127.0.0.1:1/default") as browser:
        answer = browser.get("/")
        assert answer.status_code == 503
        assert "No node answers, and none has since this console began" in answer.text
        assert "<table" not in answer.text
        assert browser.get("/vbuckets").status_code == 503
        assert browser.get("/documents?key=a").status_code == 502


def test_vbuckets_come_in_pages() -> None:
    with testing.node(vbuckets=1024) as node, console(node.url) as browser:
        page = browser.get("/").text
        assert page.count('<rect class="owner0"') == 1024 + 1
        assert len(page) < 100_000, "it is fetched anew every five seconds"
        page = browser.get("/vbuckets?page=16").text
        assert "961 to 1024 of 1,024" in page
        assert 'href="/vbuckets/1023"' in page
        assert "page 16 of 16" in page
        assert 'rel="next"' not in page


def test_a_vbucket_shows_its_failover_log(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        [(uuid, seqno)] = bucket.failover_log(5)
    page = words(browser.get("/vbuckets/5").text)
    assert f"vb uuid began after seqno {uuid:016x} {seqno}" in page
    assert browser.get("/vbuckets/16").status_code == 404


# --------------------------------------------------------------------------- documents


KEYS = (b"plain", b"<script>alert(1)</script>", b'"><img src=x>', b"\x00\xff\n", b" a b ", b"%41")
MARKUP = b"</textarea><script>alert(1)</script>"
VALUES = (b"", b"\n\nlines\n", MARKUP, b"\r\n", bytes(range(256)), b'{"a": "\xc3\xbc"}')


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", VALUES)
def test_any_key_and_value_is_shown_harmlessly_and_stored_back_as_it_was(
    browser: TestClient, node: testing.Node, key: bytes, value: bytes
) -> None:
    with node.client() as bucket:
        before = bucket.set(key, value, flags=7)
        page = browser.get(at_key(key)).text
        assert "<script>alert" not in page
        assert "<img" not in page
        fields = fields_of(page)
        assert send(browser, fields)[0] == 200
        after = bucket.get(key)
        assert (after.value, after.flags) == (value, 7)
        assert after.cas > before


def test_a_new_document_is_made_only_where_there_is_none(browser: TestClient, node: testing.Node) -> None:
    page = browser.get(at_key(b"fresh"))
    assert page.status_code == 404
    fields = fields_of(page.text) | {"value": "one\r\ntwo", "flags": "3"}
    assert "The document is stored" in send(browser, fields)[1]
    with node.client() as bucket:
        assert (bucket.get("fresh").value, bucket.get("fresh").flags) == (b"one\ntwo", 3)
        status, told = send(browser, fields | {"value": "mine"})
        assert status == 409
        assert "somebody else" in told
        assert bucket.get("fresh").value == b"one\ntwo"


def test_a_draft_replaces_a_newer_version_only_by_the_choice_of_who_was_shown_it(
    browser: TestClient, node: testing.Node
) -> None:
    with node.client() as bucket:
        bucket.set("raced", "first")
        fields = fields_of(browser.get(at_key(b"raced")).text) | {"value": "my draft", "flags": "5"}
        bucket.set("raced", "second")
        answer = browser.post("/documents/store", data=fields, headers=ORIGIN)
        assert answer.status_code == 409
        assert "nothing was stored" in words(answer.text)
        again = fields_of(answer.text)
        assert (again["value"], again["flags"], again["cas"]) == ("my draft", "5", fields["cas"])
        assert send(browser, again)[0] == 409
        assert bucket.get("raced").value == b"second", "nobody chose to replace it"
        assert "What is there now, as text" in answer.text and "second</textarea>" in answer.text
        seen = chosen(answer.text)
        bucket.set("raced", "third")
        assert send(browser, again | seen)[0] == 409
        assert bucket.get("raced").value == b"third", "nobody was shown this one"
        page = browser.post("/documents/store", data=again, headers=ORIGIN).text
        assert send(browser, fields_of(page) | chosen(page))[0] == 200
        assert (bucket.get("raced").value, bucket.get("raced").flags) == (b"my draft", 5)


def chosen(page: str) -> dict[str, str]:
    """Return what the form sends besides when its writer chooses to replace what is there now."""
    box = re.search(r'<input type="checkbox" name="over" value="(\d+)"', page)
    assert box, page
    return {"over": box[1]}


def test_a_draft_refused_for_another_reason_replaces_no_version_that_came_meanwhile(
    browser: TestClient, node: testing.Node
) -> None:
    """The page comes back with the words; the document behind it is read anew, and its CAS is not the draft's."""
    with node.client() as bucket:
        bucket.set("mistyped", "first")
        fields = fields_of(browser.get(at_key(b"mistyped")).text) | {"value": "mine"}
        bucket.set("mistyped", "second")
        answer = browser.post("/documents/store", data=fields | {"flags": "4294967296"}, headers=ORIGIN)
        assert answer.status_code == 400
        assert send(browser, fields_of(answer.text) | {"flags": "0"})[0] == 409
        assert bucket.get("mistyped").value == b"second"


def test_a_draft_of_a_document_that_was_deleted_makes_it_anew_only_by_choice(
    browser: TestClient, node: testing.Node
) -> None:
    with node.client() as bucket:
        bucket.set("buried", "first")
        fields = fields_of(browser.get(at_key(b"buried")).text) | {"value": "mine"}
        bucket.delete("buried")
        answer = browser.post("/documents/store", data=fields, headers=ORIGIN)
        assert (answer.status_code, "nothing was stored" in words(answer.text)) == (409, True)
        again = fields_of(answer.text)
        assert send(browser, again)[0] == 409
        with pytest.raises(KeyNotFound):
            bucket.get("buried")
        assert send(browser, again | chosen(answer.text))[0] == 200
        assert bucket.get("buried").value == b"mine"


def test_an_expiry_stays_unless_it_is_changed(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("short", "v", expiry=4000)
        expiry = bucket.get_meta("short").expiry
        fields = fields_of(browser.get(at_key(b"short")).text)
        assert fields["expiry"] == "keep"
        send(browser, fields | {"value": "w"})
        assert bucket.get_meta("short").expiry == expiry
        send(browser, fields_of(browser.get(at_key(b"short")).text) | {"expiry": "never"})
        assert bucket.get_meta("short").expiry == 0
        send(browser, fields_of(browser.get(at_key(b"short")).text) | {"expiry": "in", "seconds": "5000"})
        assert bucket.get_meta("short").expiry > expiry


def test_a_deletion_is_of_the_version_that_was_seen(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("doomed", "v")
        fields = fields_of(browser.get(at_key(b"doomed")).text)
        bucket.set("doomed", "w")
        assert send(browser, fields, "delete")[0] == 409
        assert bucket.get("doomed").value == b"w"
        assert send(browser, fields | {"cas": "0"}, "delete")[0] == 400
        status, told = send(browser, fields_of(browser.get(at_key(b"doomed")).text), "delete")
        assert status == 200
        assert "The document is deleted" in told
        assert "There is no document of this key" in told
        with pytest.raises(KeyNotFound):
            bucket.get("doomed")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"value": "zz", "value_form": "hex"}, "pairs of hexadecimal digits"),
        ({"flags": "-1"}, "a whole number"),
        ({"flags": "4294967296"}, "from 0 to 4294967295"),
        ({"expiry": "soon"}, "keep, never or in"),
        ({"expiry": "in", "seconds": "99999999"}, "expiry"),
        ({"key": ""}, "1 to 250 bytes"),
    ],
)
def test_what_can_not_be_stored_is_said_and_nothing_is_lost(
    browser: TestClient, wrong: dict[str, str], told: str
) -> None:
    fields = fields_of(browser.get(at_key(b"careful")).text) | {"value": "my words"} | wrong
    answer = browser.post("/documents/store", data=fields, headers=ORIGIN)
    assert answer.status_code == 400
    assert told in words(answer.text)
    if "key" not in wrong:
        assert fields["value"] in html.unescape(answer.text)


def test_a_document_larger_than_a_form_is_shown_in_part(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("large", b"x" * (EDIT_BYTES_MAX + 1))
    page = browser.get(at_key(b"large")).text
    assert "too large to be edited here" in page
    assert "/documents/store" not in page
    assert len(page) < 100_000


def test_a_mebibyte_is_edited_and_a_larger_one_is_had_as_a_file(browser: TestClient, node: testing.Node) -> None:
    lines = b"\n" * EDIT_BYTES_MAX  # the most that the largest value can become on its way
    with node.client() as bucket:
        bucket.set("mebibyte", lines)
        assert send(browser, fields_of(browser.get(at_key(b"mebibyte")).text))[0] == 200
        assert bucket.get("mebibyte").value == lines
        bucket.set(b"lar\xffge", bytes(range(256)) * 8192)
    answer = browser.get("/documents/value?key=6c6172ff6765&form=hex")
    assert answer.content == bytes(range(256)) * 8192
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''lar%FFge"
    assert browser.get("/documents/value?key=not-there").status_code == 404
    assert browser.get("/documents/value?key=a&collection=shop.nothing").status_code in (404, 502)


def test_attributes_are_shown_and_stay_when_the_value_is_stored(browser: TestClient, node: testing.Node) -> None:
    value = xattr.join({"_sync": b'{"rev":"1-a"}', "note": b'"<script>alert(1)</script>"'}, b"body")
    with client.connect(node.url, xattrs=True) as bucket:
        write = WriteWithMeta(b"attributed", value, flags=0, expiry=0, cas=77, rev_seqno=3, datatype=4)
        assert bucket.write_many([write]) == {}
        page = browser.get(at_key(b"attributed")).text
        assert '_sync {"rev":"1-a"}' in html.unescape(words(page))
        assert "<script>alert" not in page
        assert "they stay when the value is stored" in page
        assert send(browser, fields_of(page) | {"value": "changed"})[0] == 200
        assert bucket.get("attributed").value == b"changed"
        assert bucket.get_xattrs("attributed")["_sync"] == b'{"rev":"1-a"}'


def test_a_document_of_a_collection_is_stored_and_deleted_there(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("twin", "of the default one")
        done(browser, "collection-create", name="shop.orders")
        page = browser.get("/documents?key=twin&collection=shop.orders")
        assert page.status_code == 404
        assert send(browser, fields_of(page.text) | {"value": "of orders"})[0] == 200
        assert bucket.collection("shop.orders").get("twin").value == b"of orders"
        page = browser.get("/documents?key=twin&collection=shop.orders")
        assert send(browser, fields_of(page.text), "delete")[0] == 200
        assert bucket.get("twin").value == b"of the default one"
        with pytest.raises(KeyNotFound):
            bucket.collection("shop.orders").get("twin")
    assert "no.such.name" in words(browser.get("/documents?key=twin&collection=no.such.name").text)


def test_a_key_that_is_none_is_said(browser: TestClient) -> None:
    assert browser.get("/documents?key=" + "k" * 251).status_code == 400
    assert browser.get("/documents?key=6&form=hex").status_code == 400


# --------------------------------------------------------------------------- users


ROLES = {"ann": "administer", "watch": "monitor", "reader": "read,monitor", "writer": "read,write"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as node:
        node.stop()
        accounts = {name: Account.create("root-secret", read_grants(roles)) for name, roles in ROLES.items()}
        UsersFile(node.data).save(accounts)
        node.start()
        with client.connect(node.url, "ann", "root-secret") as bucket:
            bucket.set("a", "v")
        yield node


def test_who_may_only_monitor_sees_the_cluster_and_no_document(guarded: testing.Node) -> None:
    before = guarded.log.count("GET_ALL_VB_SEQNOS")
    with console(guarded.url, "watch", "root-secret") as browser:
        page = words(browser.get("/").text)
        assert f"{guarded.address} yes 4 0 0 0 1 0" in page
        assert "All nodes answer" in page
        assert "1 to 4 of 4" in browser.get("/vbuckets").text
        assert "vb uuid began after seqno" in words(browser.get("/vbuckets/1").text)
        page = words(browser.get("/documents?key=a").text)
        assert "may not read documents" in page
        assert "may not write documents" in page
        assert "Store" not in page
        form = {"token": SECRETS.token, "key": "a", "value": "w", "form": "text", "value_form": "text"}
        assert send(browser, form)[0] == 403
        assert send(browser, form | {"cas": "1"}, "delete")[0] == 403
    denied = guarded.log.count("GET_ALL_VB_SEQNOS") - before
    assert denied <= 2, "the node is not asked again and again for what it refused"


def test_who_may_only_read_is_offered_no_form(guarded: testing.Node) -> None:
    with console(guarded.url, "reader", "root-secret") as browser:
        page = browser.get("/documents?key=a").text
        assert "readonly" in page
        assert "/documents/store" not in page
        assert "/documents/delete" not in page


def test_who_may_not_monitor_is_told_so(guarded: testing.Node) -> None:
    with console(guarded.url, "writer", "root-secret") as browser:
        page = browser.get("/")
        assert page.status_code == 503
        assert "EACCESS" in page.text
        assert fields_of(browser.get("/documents?key=a").text)["value"] == "v"


def test_the_credentials_are_on_no_page(guarded: testing.Node) -> None:
    with console(guarded.url, "ann", "root-secret") as browser:
        for path in ("/", "/vbuckets", "/vbuckets/0", "/documents?key=a", "/documents?key=none"):
            answer = browser.get(path)
            assert "root-secret" not in answer.text
            assert "root-secret" not in str(answer.headers)
        assert "as ann" in words(browser.get("/").text)


def test_a_login_in_the_address_is_on_no_page_either(guarded: testing.Node) -> None:
    with console(f"couchbase://ann:root-secret@{guarded.address}/default", "ann", "root-secret") as browser:
        for path in (*dict(PAGES), "/documents?key=a", "/actions/rebalance/plan"):
            answer = browser.get(path)
            assert "root-secret" not in answer.text + str(answer.headers), path


def test_wrong_credentials_are_told_without_them(guarded: testing.Node) -> None:
    with console(guarded.url, "ann", "wrong-secret") as browser:
        page = browser.get("/")
        assert page.status_code == 503
        assert "AUTH_ERROR" in page.text or "login" in page.text.lower()
        assert "wrong-secret" not in page.text
        guarded.restart()  # it has forgotten the wrong logins, the next of which it would answer ever later
        assert "wrong-secret" not in browser.get("/documents?key=a").text


def test_who_may_not_administer_is_refused_each_action_by_its_name(guarded: testing.Node) -> None:
    with console(guarded.url, "watch", "root-secret") as browser:
        page = browser.get("/actions").text
        assert "may not change the cluster" in page
        assert "/plan" not in page
        for kind in ("rebalance", "failover", "compaction", "flush"):
            form = {"token": SECRETS.token, "dead": "127.0.0.1:1", "vbucket": "1", "hours": "1"}
            for answer in (
                browser.get(f"/actions/{kind}/plan", params=form),
                browser.post(f"/actions/{kind}/begin", data=form, headers=ORIGIN),
            ):
                assert answer.status_code == 403
                assert f"{kind} needs the role administer" in words(answer.text)
