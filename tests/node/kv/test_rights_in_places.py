"""Users with roles in some buckets, scopes and collections only, at a real node: every way in goes by them."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.aware import COLLECTIONS, JSON, XERROR, Aware, manifest, told
from tests.node.replication.support import until

CARTS, ORDERS = 8, 9
PASSWORD = "s3cret"
USERS = {
    "root": "administer",
    "clerk": "read[shop:shop:carts],write[shop:shop:carts],stream[shop:shop:carts]",
    "scout": "read[shop:shop]",
    "tail": "stream[shop:shop]",
    "plain": "read[shop:_default:_default]",
    "other": "read[default],write[default]",
}
DENIED, UNKNOWN = Status.EACCESS, Status.UNKNOWN_COLLECTION


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with a bucket `shop`, which has collections `carts` and `orders`, and users."""
    with testing.node(vbuckets=2, environment={"HEADWATER_ADMINISTRATORS": ""}) as running:
        with Aware(running.port) as root:
            assert root.ask(Opcode.CREATE_BUCKET, key=b"shop", value=b"x\0vbuckets=1").status == 0
            assert root.ask(Opcode.SELECT_BUCKET, key=b"shop").status == 0
            assert root.becomes(manifest(1, carts=CARTS, orders=ORDERS)) == 0
            for collection in (0, CARTS, ORDERS):
                assert root.put(b"k", b"%d" % collection, collection) == 0
        give(running, USERS)
        yield running


def give(node: Node, roles: dict[str, str]) -> None:
    """Give users these roles; on return the node goes by them."""
    with UsersFile(node.data).editing() as accounts:
        for name, text in roles.items():
            accounts[name] = Account.create(PASSWORD, read_grants(text))
    (name, text), *_ = roles.items()
    until(lambda: knows(node, name, text), "the node has taken the users up")


def knows(node: Node, name: str, text: str) -> bool:
    status, body = page(node, f"/settings/rbac/users/local/{name}", "root")
    return status == 200 and len(json.loads(body)["roles"]) == len(read_grants(text))


def page(node: Node, path: str, user: str, method: str = "GET") -> tuple[int, str]:
    login = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    asked = urllib.request.Request(f"http://127.0.0.1:{node.port}{path}", headers={"Authorization": f"Basic {login}"})
    asked.method = method
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


class User(Aware):
    """A connection of a user to a bucket."""

    def __init__(self, node: Node, name: str, bucket: str = "shop", *features: int) -> None:
        super().__init__(node.port, *features)
        login = self.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{name}\0{PASSWORD}".encode())
        assert login.status == 0
        self.selected = self.ask(Opcode.SELECT_BUCKET, key=bucket.encode()).status

    def __enter__(self) -> User:
        return self


def test_a_bucket_is_entered_by_who_has_a_role_in_a_part_of_it(node: Node) -> None:
    for name in USERS:
        with User(node, name) as user:
            assert user.selected == (DENIED if name == "other" else 0), name
            seen = user.ask(Opcode.LIST_BUCKETS).value.decode().split()
            assert seen == (["default", "shop"] if name == "root" else ["default"] if name == "other" else ["shop"])
            assert user.ask(Opcode.SELECT_BUCKET, key=b"none").status == (
                Status.KEY_ENOENT if name == "root" else DENIED
            )


def test_who_may_read_in_another_bucket_is_told_that_none_is_selected(node: Node) -> None:
    with User(node, "clerk", "default") as clerk:
        assert clerk.selected == DENIED and clerk.got(b"k") == Status.NO_BUCKET


def test_each_document_goes_by_the_role_for_its_collection(node: Node) -> None:
    with User(node, "clerk") as clerk, User(node, "scout") as scout, User(node, "plain") as plain:
        assert clerk.got(b"k", CARTS) == b"8" and clerk.put(b"c", b"v", CARTS) == 0
        assert clerk.got(b"k", ORDERS) == clerk.put(b"c", b"v", ORDERS) == clerk.got(b"k") == UNKNOWN
        assert scout.got(b"k", CARTS) == b"8" and scout.got(b"k", ORDERS) == b"9"
        assert scout.put(b"c", b"v", CARTS) == DENIED and scout.got(b"k") == UNKNOWN
        assert plain.got(b"k") == b"0" and plain.put(b"k", b"v") == DENIED and plain.got(b"k", CARTS) == UNKNOWN


def test_all_commands_with_a_key_are_refused_where_there_is_no_right(node: Node) -> None:
    """The rights are looked at before the rest of a request, so all may come without extras."""
    key = b"\x09k"
    with User(node, "clerk") as clerk:
        for opcode in (
            *(Opcode.GET, Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.INCREMENT, Opcode.APPEND),
            *(Opcode.TOUCH, Opcode.GAT, Opcode.GETK, Opcode.GET_LOCKED, Opcode.UNLOCK_KEY, Opcode.GET_META),
            *(Opcode.GET_REPLICA, Opcode.RETURN_META),
            *(Opcode.SUBDOC_GET, Opcode.SUBDOC_MULTI_LOOKUP, Opcode.SUBDOC_MULTI_MUTATION, Opcode.SUBDOC_COUNTER),
        ):
            assert clerk.ask(opcode, key=key).status == UNKNOWN, opcode
        for opcode in (Opcode.SET_WITH_META, Opcode.DEL_WITH_META, Opcode.EVICT_KEY):  # which need what nobody has here
            assert clerk.ask(opcode, key=key).status == clerk.ask(opcode, key=b"\x08k").status == DENIED, opcode


def test_a_client_without_collections_goes_by_the_role_for_the_default_one(node: Node) -> None:
    for name, got in (("plain", b"0"), ("clerk", DENIED), ("root", b"0")):
        with User(node, name, "shop", XERROR, JSON) as user:
            found = user.ask(Opcode.GET, key=b"k")
            assert (found.status or found.value) == got


def test_names_are_not_given_away(node: Node) -> None:
    def names(user: User) -> list[str]:
        found = json.loads(user.ask(Opcode.COLLECTIONS_GET_MANIFEST).value)
        return [f"{scope['name']}.{each['name']}" for scope in found["scopes"] for each in scope["collections"]]

    with User(node, "clerk") as clerk, User(node, "root") as root:
        assert names(clerk) == ["shop.carts"] and len(names(root)) == 3
        assert clerk.ask(Opcode.COLLECTIONS_GET_ID, value=b"shop.carts").status == 0
        assert clerk.ask(Opcode.COLLECTIONS_GET_ID, value=b"shop.orders").status == UNKNOWN
        assert clerk.ask(Opcode.COLLECTIONS_GET_SCOPE_ID, value=b"_default").status == Status.UNKNOWN_SCOPE
    for name, count in (("clerk", 1), ("root", 3)):
        scopes = json.loads(page(node, "/pools/default/buckets/shop/scopes", name)[1])["scopes"]
        assert sum(len(scope["collections"]) for scope in scopes) == count


def test_a_bucket_in_which_one_may_do_nothing_is_not_there_by_http(node: Node) -> None:
    """Neither what it has nor whether there is one of the name: all that is asked of it is as of a made-up name."""
    paths = ("buckets/{}", "buckets/{}/scopes", "b/{}", "bs/{}", "bucketsStreaming/{}")
    for path in (f"/pools/default/{path}" for path in paths):
        assert page(node, path.format("shop"), "other") == page(node, path.format("none"), "other"), path
        assert page(node, path.format("shop"), "other")[0] == 404
    for path in ("buckets/{}", "buckets/{}/scopes", "buckets/{}/scopes/shop", "buckets/{}/controller/doFlush"):
        for method in ("POST", "PUT", "DELETE"):
            asked = (f"/pools/default/{path.format(name)}" for name in ("shop", "none"))
            real, made_up = (page(node, each, "other", method) for each in asked)
            assert real == made_up, f"{method} {path}"
    assert (
        page(node, "/pools/default/buckets/shop", "clerk")[0] == page(node, "/pools/default/b/shop", "plain")[0] == 200
    )


def test_the_pool_names_the_buckets_that_one_may_enter(node: Node) -> None:
    for user, names in (("other", ["default"]), ("clerk", ["shop"]), ("root", ["default", "shop"])):
        told = json.loads(page(node, "/pools/default", user)[1])
        assert [each["bucketName"] for each in told["bucketNames"]] == names


def test_who_watches_a_bucket_by_http_is_cut_off_with_his_last_right_in_it() -> None:
    with testing.node(vbuckets=1) as node:
        give(node, {"eve": "read[default:shop:carts]", "root": "administer"})
        login = base64.b64encode(f"eve:{PASSWORD}".encode()).decode()
        url = f"http://127.0.0.1:{node.port}/pools/default/bs/default"
        asked = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(asked, timeout=120) as watched:
            assert b"vBucketServerMap" in watched.readline()
            give(node, {"eve": "read[other]"})
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                watched.read()


def test_the_seqnos_of_a_collection_are_those_of_who_may_stream_it(node: Node) -> None:
    def asked(user: User, collection: int) -> int:
        extras = bytes(4) + collection.to_bytes(4)
        return user.ask(Opcode.GET_ALL_VB_SEQNOS, extras=extras).status

    with User(node, "clerk") as clerk, User(node, "tail") as tail, User(node, "root") as root:
        assert asked(clerk, CARTS) == asked(tail, ORDERS) == asked(root, 0) == 0
        assert asked(clerk, ORDERS) == asked(clerk, 0) == asked(clerk, 77) == UNKNOWN
        assert asked(tail, 0) == asked(root, 77) == UNKNOWN
    with User(node, "tail", "shop", XERROR, JSON) as tail:  # for whom it would be that of the default collection
        assert tail.ask(Opcode.GET_ALL_VB_SEQNOS).status in {UNKNOWN, DENIED}


def test_what_is_not_of_a_collection_needs_the_role_in_the_whole_bucket(node: Node) -> None:
    with User(node, "clerk") as clerk:
        for opcode in (Opcode.STAT, Opcode.GET_RANDOM_KEY, Opcode.TAP_CONNECT, Opcode.FLUSH, Opcode.SET_VBUCKET):
            assert clerk.ask(opcode).status == DENIED, opcode
        assert clerk.ask(Opcode.CREATE_BUCKET, key=b"mine").status == DENIED
        assert clerk.seqno() > 0 and clerk.ask(Opcode.GET_FAILOVER_LOG).status == 0


def test_a_range_scan_goes_by_the_role_for_its_collection(node: Node) -> None:
    def begun(user: User, collection: int) -> int:
        told = {"collection": f"{collection:x}", "range": {"start": "AA==", "end": "/w=="}}
        return user.ask(Opcode.RANGE_SCAN_CREATE, value=json.dumps(told).encode(), datatype=1).status

    with User(node, "clerk") as clerk, User(node, "tail") as tail, User(node, "plain") as plain:
        assert begun(clerk, CARTS) == begun(plain, 0) == 0
        assert begun(clerk, ORDERS) == begun(clerk, 0) == UNKNOWN and begun(tail, CARTS) == DENIED


def test_a_stream_that_would_carry_what_one_may_not_read_is_refused(node: Node) -> None:
    with User(node, "clerk") as clerk:
        clerk.opens(b"clerk's")
        assert clerk.asks().status == DENIED
        assert clerk.asks({"scope": "8"}).status == DENIED
        refused = clerk.asks({"collections": ["8", "9"]})
        assert refused.status == UNKNOWN and "manifest_uid" in json.loads(refused.value)
        assert clerk.asks({"scope": "0"}).status == Status.UNKNOWN_SCOPE
        assert clerk.asks({"collections": ["8"]}, flags=4).status == 0
        assert {each[-1] for each in told(clerk.messages()) if each[0] == "set"} == {b"\x08k", b"\x08c"}
    with User(node, "tail") as tail:
        tail.opens(b"tail's")
        assert tail.asks().status == DENIED and tail.asks({"scope": "8"}, flags=4).status == 0
    with User(node, "plain") as plain:
        assert plain.ask(Opcode.DCP_OPEN, key=b"plain's", extras=bytes(7) + b"\1").status == DENIED


def test_a_client_without_collections_streams_the_default_one_by_its_role(node: Node) -> None:
    with User(node, "tail", "shop", XERROR, JSON) as tail:
        tail.opens(b"old tail's")
        assert tail.asks().status == DENIED


def test_a_stream_ends_when_its_reader_loses_the_right_and_the_others_go_on() -> None:
    roles = "stream[default:shop:carts],stream[default:shop:orders]"
    with testing.node(vbuckets=1) as node:
        with Aware(node.port) as root:
            assert root.becomes(manifest(1, carts=CARTS, orders=ORDERS)) == 0
        give(node, {"eve": roles, "root": "administer"})
        with User(node, "eve", "default") as eve, User(node, "root", "default") as root:
            eve.opens(b"eve's", enable_stream_id="true")
            assert eve.asks({"collections": ["8"], "sid": 1}).status == 0
            assert eve.asks({"collections": ["9"], "sid": 2}).status == 0
            give(node, {"eve": "stream[default:shop:orders]"})
            (*_, ended) = eve.until(Opcode.DCP_STREAM_END)
            assert told([ended]) == [("end", 8)], "LostPrivileges"
            assert root.put(b"k", b"secret", CARTS) == root.put(b"k", b"v", ORDERS) == 0
            got = eve.until(Opcode.DCP_MUTATION)
            assert [each[-1] for each in told(got) if each[0] == "set"] == [b"\x09k"]
            give(node, {"eve": "read[default]"})
            while eve.read() is not None:
                pass


def test_who_has_no_right_in_a_bucket_any_more_streams_it_no_more_whatever_he_may_in_another() -> None:
    """Without a bucket a session has the rights of all buckets: those kept the connection, and opened more streams."""
    with testing.node(vbuckets=1) as node:
        give(node, {"eve": "stream[default],stream[elsewhere]", "root": "administer"})
        with User(node, "eve", "default") as eve, User(node, "eve", "default", XERROR) as tapper:
            eve.opens(b"eve's")
            assert eve.asks(flags=0).status == 0
            tapper.send(Frame(0x80, Opcode.TAP_CONNECT, key=b"eve's", extras=bytes(4)).encode())
            give(node, {"eve": "stream[elsewhere]"})
            for each in (eve, tapper):
                while each.read() is not None:
                    pass


def test_rights_change_for_requests_of_a_connection_that_is_open() -> None:
    with testing.node(vbuckets=1) as node:
        with Aware(node.port) as root:
            assert root.becomes(manifest(1, carts=CARTS)) == 0
        give(node, {"eve": "read[default:shop:carts],write[default:shop:carts]", "root": "administer"})
        with User(node, "eve", "default", COLLECTIONS, XERROR) as eve:
            assert eve.put(b"k", b"v", CARTS) == 0
            give(node, {"eve": "read[default:shop]"})
            until(lambda: eve.put(b"k", b"v", CARTS) == DENIED, "the right to write is gone")
            assert eve.got(b"k", CARTS) == b"v"
