"""The users of a node, or of all nodes of a cluster: every member that answers gets the same list.

The lists of the members are merged user by user, changed, and sent to all of them; changes that a member gets from
another meanwhile are not lost. A member that is away requests the list from the others when it is back. Verifiers
travel, never passwords.

Source: node/users/sharing.py; docs/decisions/0076.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from headwater.cluster.known import known_map
from headwater.errors import ClusterError, StatusError, TransportError
from headwater.wire.users import UserList

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["Edit", "Spread", "change", "current", "share"]

Edit: TypeAlias = "Callable[[UserList], UserList]"


@dataclass(frozen=True, slots=True)
class Spread:
    """The reach of a change.

    Attributes:
        users: the list after the change.
        nodes: the nodes that have it on disk.
        away: the nodes that will request it when they are back, each with the reason why it did not answer.
    """

    users: UserList
    nodes: tuple[Address, ...]
    away: dict[Address, str]


@dataclass(frozen=True, slots=True)
class _UserLists:
    nodes: tuple[Address, ...]
    users: UserList
    is_shared: bool
    away: dict[Address, str]


async def current(members: Members, seeds: Sequence[Address]) -> UserList:
    """Return the users, merged from the lists of the members that answer. Raises as `change`."""
    return (await _ask(members, seeds)).users


async def change(members: Members, seeds: Sequence[Address], edit: Edit) -> Spread:
    """Change the users on all nodes that `seeds` lead to; on return that is durable on each node that answers.

    The first member of the map that answers gets the change before the others: of two contradictory changes at once, as
    of two administrators who remove each other, the second is refused there, and reaches no other node.

    Raises:
        NoAccess: our user does not administer all buckets. An error of `edit`: nothing was changed.
        ClusterError: a member refused it, or stopped answering; nothing was changed if that was the first.
        StatusError, TransportError: no node answers the first request.
    """
    user_lists = await _ask(members, seeds)
    users = edit(user_lists.users)
    first, *other_nodes = user_lists.nodes
    try:
        await members.admin(first).set_users(users)
    except (StatusError, TransportError) as error:
        raise ClusterError(f"the users were not changed: {error}", "look at them, and type it again") from error
    results = await asyncio.gather(
        *(members.admin(node).set_users(users) for node in other_nodes), return_exceptions=True
    )
    away, refusals = dict(user_lists.away), list[str]()
    for node, result in zip(other_nodes, results, strict=True):
        # A member that went away asks the others when it is back; one that refused will not, and people must know.
        if isinstance(result, TransportError):
            away[node] = str(result)
        elif isinstance(result, BaseException):
            refusals.append(f"{node}: {result}")
    if refusals:
        raise ClusterError(f"the users are not everywhere: {'; '.join(refusals)}", "type the same again")
    return Spread(users, tuple(node for node in user_lists.nodes if node not in away), away)


async def share(members: Members, seeds: Sequence[Address]) -> None:
    """Merge the users of all nodes of a new cluster into one list and send it to each.

    Nothing happens if no node has users, or if one refuses to report them, as a node of an older release does.

    Raises:
        ClusterError: a node did not accept them; repeat the call to continue.
    """
    try:
        user_lists = await _ask(members, seeds)
    except (StatusError, TransportError):  # they are of a release, or of a kind, whose nodes have each their own
        return
    if user_lists.users.entries and not user_lists.is_shared:
        await change(members, seeds, lambda users: users)


async def _ask(members: Members, seeds: Sequence[Address]) -> _UserLists:
    """Return the merged lists of all members: those that belong to the cluster if there are any, else all of them.

    Raises:
        ClusterError: no member answers. StatusError: one refused.
    """
    first, cluster_map = await known_map(members, seeds, of_first_bucket=True)
    nodes, cluster = ([first], "") if cluster_map is None else (list(cluster_map.servers), cluster_map.uuid)
    answers = await asyncio.gather(*(members.admin(node).users() for node in nodes), return_exceptions=True)
    lists: dict[Address, UserList] = {}
    away: dict[Address, str] = {}
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, UserList):
            lists[node] = answer
        elif isinstance(answer, TransportError) and len(nodes) > 1:
            away[node] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
    if not lists:
        raise ClusterError("; ".join(away.values()), "start a member, or name one that runs")
    shared_lists = [users for users in lists.values() if cluster and users.cluster == cluster]
    if cluster_map is None:
        cluster = lists[first].cluster
    together = replace(UserList.of_all(shared_lists or lists.values()), cluster=cluster)
    return _UserLists(tuple(lists), together, len(shared_lists) == len(lists), away)
