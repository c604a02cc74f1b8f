"""Collections that a reader of the default one does not see, from what servers tell."""

import pytest

from headwater.client.unread import unread_collections
from headwater.errors import StatusError
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
