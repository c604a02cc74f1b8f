"""Collections that a reader of the default one does not see, from what servers tell."""

import pytest

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client.unread import required_manifest, unread_collections, whole_manifest
from headwater.errors import NoAccess, StatusError
from headwater.node.users.file import UsersFile
from headwater.wire.status import Status


class Bucket:
    """Answers for one group of statistics, or refuses it."""

    def __init__(self, told: dict[str, str] | Status) -> None:
        self.told = told

    def stats(self, group: str) -> dict[str, str]:
        assert group == "scopes"
        if isinstance(self.told, Status):
            raise StatusError("stats", self.told)
        return self.told


DEFAULT = {"manifest_uid": "0x3", "0x0:name": "_default", "0x0:collections": "1"}
SERVERS_OWN = {"0x8:name": "_system", "0x8:collections": "2"}
SHOP = {"0x9:name": "shop", "0x9:collections": "2"}


@pytest.mark.parametrize(
    ("told", "unread"),
    [
        (DEFAULT, {}),
        (DEFAULT | SERVERS_OWN, {}),
        (DEFAULT | SHOP | SERVERS_OWN, {"shop": 2}),
        (DEFAULT | {"0x0:collections": "3"}, {"_default": 2}),
        (DEFAULT | {"0x9:name": "empty", "0x9:collections": "0"}, {}),
        ({}, {}),
        (Status.KEY_ENOENT, {}),
    ],
)
def test_all_but_the_default_collection_and_the_servers_own_are_unread(
    told: dict[str, str] | Status, unread: dict[str, int]
) -> None:
    assert unread_collections(Bucket(told)) == unread  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("roles", "is_whole"),
    [
        ("stream[default]", True),
        ("monitor[default]", False),
        ("monitor[default],stream[default:_default]", True),
        ("stream[default:shop]", False),
        ("read[default:shop],stream[default:shop]", False),
    ],
)
def test_who_streams_the_whole_bucket_is_shown_all_collections_without_another_role(roles: str, is_whole: bool) -> None:
    with testing.node(vbuckets=2) as node:
        with node.client() as bucket:
            bucket.set("a", "v")
        node.stop()
        accounts = {"root": "administer", "mirror": roles}
        made = {name: Account.create("a-secret", read_grants(text)) for name, text in accounts.items()}
        UsersFile(node.data).save(made)
        node.start()
        with client.connect(node.url, "mirror", "a-secret") as bucket:
            assert (whole_manifest(bucket) is not None) is is_whole
            if not is_whole:
                with pytest.raises(NoAccess, match="give that user the role stream in all of it"):
                    required_manifest(bucket)
