"""Tables for pages, made from the nodes' answers. No I/O.

A missing answer is None, which a page shows as a dash: never a 0 that no node reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headwater.client.routing import Address
from headwater.cluster.survey import Survey
from headwater.wire.vbucket import State

PAGE_ROWS = 64
OWNER_COLOURS = 8

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A vbucket on one node.

    Attributes:
        planned: its role there by the map; empty for none.
    """

    address: Address
    state: State | None
    planned: str
    seqno: int | None
    items: int | None

    @property
    def agrees(self) -> bool:
        """True if the node's state of the vbucket is that of the map."""
        return self.planned == (self.state.name.lower() if self.state is not None else "")


@dataclass(frozen=True, slots=True)
class VbucketRow:
    """A vbucket on all nodes.

    Attributes:
        owner: owner by the map; None if there is none.
        seqno, items: high seqno and documents of the owner's active copy; None if the node does not report them.
        behind: changes that the worst replica lacks; None if unknown.
        copies: the copies by node, without nodes that do not answer.
        silent: nodes of its chain that do not answer.
    """

    vbucket: int
    owner: Address | None
    replicas: tuple[Address, ...]
    seqno: int | None
    items: int | None
    behind: int | None
    copies: tuple[CopyRow, ...]
    silent: tuple[Address, ...]

    @property
    def trouble(self) -> str:
        """A sentence about the differences from the map; empty if there are none."""
        active = [copy.address for copy in self.copies if copy.state is State.ACTIVE]
        if self.silent:
            return f"{', '.join(map(str, self.silent))} does not answer"
        if len(active) != 1:
            return "active nowhere" if not active else f"active on {', '.join(map(str, active))}"
        wrong = [copy for copy in self.copies if not copy.agrees]
        return "; ".join(f"{each.address}: {_name(each.state)}, by the map {each.planned or 'none'}" for each in wrong)


def _name(state: State | None) -> str:
    return state.name.lower() if state is not None else "missing"


def vbucket_row(survey: Survey, vbucket: int) -> VbucketRow:
    """Return the row of a vbucket."""
    map_ = survey.map
    chain = dict.fromkeys((*map_.copies(vbucket), *survey.nodes))
    views = [survey.nodes[each] for each in chain if each in survey.nodes]
    owner = map_.owner(vbucket)
    copies = tuple(
        CopyRow(
            view.address,
            view.states.get(vbucket),
            "active" if view.address == owner else "replica" if view.address in map_.replicas(vbucket) else "",
            view.seqnos.get(vbucket),
            view.items.get(vbucket),
        )
        for view in views
        if view.answers and (vbucket in view.states or view.address in map_.copies(vbucket))
    )
    owner_copy = next((copy for copy in copies if copy.address == owner and copy.state is State.ACTIVE), None)
    seqno = owner_copy.seqno if owner_copy is not None else None
    silent_nodes = tuple(view.address for view in views if not view.answers and view.address in map_.copies(vbucket))
    replicas = map_.replicas(vbucket)
    lacking = [_changes_behind(copies, replica, seqno) for replica in replicas]
    lag = None if None in lacking else max((each for each in lacking if each is not None), default=0)
    return VbucketRow(
        vbucket, owner, tuple(replicas), seqno, owner_copy.items if owner_copy else None, lag, copies, silent_nodes
    )


def _changes_behind(copies: Sequence[CopyRow], address: Address, seqno: int | None) -> int | None:
    replica_seqno = next((copy.seqno for copy in copies if copy.address == address), None)
    return None if replica_seqno is None or seqno is None else max(0, seqno - replica_seqno)


def vbucket_rows(survey: Survey) -> list[VbucketRow]:
    """Return the rows of all vbuckets of the map."""
    return [vbucket_row(survey, each) for each in range(survey.map.vbuckets)]


def owner_classes(rows: Sequence[VbucketRow], servers: Sequence[Address]) -> list[str]:
    """Return the CSS class of each vbucket's square: that of its owner's colour, or "trouble"."""
    places = {address: f"owner{place % OWNER_COLOURS}" for place, address in enumerate(servers)}
    return ["trouble" if row.trouble or row.owner is None else places[row.owner] for row in rows]


@dataclass(frozen=True, slots=True)
class Paged(Generic[Row]):
    """A part of many rows: `page` of `pages`, from the `first` to the `last` of all; counted from 1, 0 for none."""

    rows: Sequence[Row]
    page: int
    pages: int
    first: int
    last: int
    total: int


def page_of(fields: Mapping[str, str]) -> int:
    """Return the number of the page that an address names; 1 for none."""
    text = fields.get("page", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1


def paged(rows: Sequence[Row], page: int, size: int = PAGE_ROWS) -> Paged[Row]:
    """Return a page of rows; the nearest existing page."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(page, 1), pages)
    part = rows[(page - 1) * size : page * size]
    first = (page - 1) * size + 1 if part else 0
    return Paged(part, page, pages, first, first + len(part) - 1 if part else 0, len(rows))
