"""The users of the cluster over the wire: IOCTL_GET and IOCTL_SET with the key "users" (node/users/sharing.py).

The value of IOCTL_GET is the digest of the caller's list, or empty; the answer is the node's list, or empty if the
digest is that of the node's list. The value of IOCTL_SET is a list, to be merged with the node's; the answer says that
the merged list is on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.accounts.roles import CLUSTER_USER
from headwater.errors import StorageError
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.node.users.sharing import KEY
from headwater.wire.admin import IoctlGet, IoctlGetResponse
from headwater.wire.layout import Done
from headwater.wire.privilege import ADMINISTER
from headwater.wire.status import Status
from headwater.wire.users import UserList, UserListRefused

if TYPE_CHECKING:
    from headwater.node.kv.api import Session


@handles(IoctlGet, of_node=True)
def ioctl_get(session: Session, request: IoctlGet) -> IoctlGetResponse:
    """Answer IOCTL_GET with the users and their verifiers; with an empty value if the caller has the same list."""
    if request.key != KEY:
        raise CommandRefused(Status.EINVAL, f"the key is {KEY.decode()}")
    if session.user != CLUSTER_USER:
        _check_administers(session)
    return IoctlGetResponse(value=session.server.sharing.text(request.value))


async def set_users(session: Session, text: bytes) -> Done:
    """Merge a list of users into the node's list; the result is on disk before the answer is sent."""
    _check_administers(session)
    users = session.server.users
    before = users.list or UserList()
    try:
        await session.server.sharing.take(text)
    except UserListRefused as error:
        raise CommandRefused(Status.EINVAL, str(error)) from None
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    for change in (users.list or before).changes_since(before):
        session.server.record(session, change)
    return Done()


def _check_administers(session: Session) -> None:
    """Refuse a user who does not administer the node: users and verifiers belong to the node, not to a bucket."""
    if not session.server.users.rights(session.user, None) & ADMINISTER:
        session.server.audit(session, "may not see or change the users: that needs administer in all buckets")
        raise CommandRefused(Status.EACCESS, "users are the business of who administers all buckets")
