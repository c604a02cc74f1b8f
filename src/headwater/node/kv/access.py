"""The checks that refuse requests for which a connection's user lacks a right.

A user has privileges in a bucket, and possibly others in its scopes and collections (`Places`). A request about a
collection in which the user has no privilege is refused as if the collection did not exist, so that its name stays
secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.node.refused import CommandRefused
from headwater.wire.opcodes import name_of
from headwater.wire.privilege import LOGIN, Privilege, in_words
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.kv.rights import Rule
    from headwater.wire.header import Frame

_LOGIN = int(LOGIN)


def rights_in(session: Session, collection: int) -> int:
    """Return the user's privileges in a collection of the selected bucket; if no bucket is selected, in any bucket."""
    if session.access.places is None:
        return session.access.rights
    return session.access.in_collection(session.store_bucket.collections.manifest, collection)


def check_rights(session: Session, frame: Frame, rule: Rule, rights: int | None = None) -> None:
    """Refuse a request with EACCESS if the user lacks a privilege that it needs, and log the attempt.

    Args:
        session: the user's session.
        frame: the request.
        rule: the rule of the request's opcode.
        rights: the user's privileges; None for those in the selected bucket.
    """
    needed = rule.needed(frame) if rule.cases else rule.privilege
    missing = needed & ~(session.access.rights if rights is None else rights)
    if not missing:
        return
    if not session.access.is_logged_in:
        raise CommandRefused(Status.EACCESS, "not logged in")
    lacking = f"needs {in_words(missing)}"
    session.server.audit(session, f"may not {name_of(frame.opcode)}: it {lacking}")
    raise CommandRefused(Status.EACCESS, f"{name_of(frame.opcode)} {lacking}")


def check_collection(session: Session, collection: int, needed: Privilege) -> None:
    """Refuse a request that names a collection outside of its key, if the user lacks a privilege in that collection."""
    if session.access.places is None or not needed & ~(rights := rights_in(session, collection)):
        return
    if rights <= _LOGIN:
        raise _hidden_refusal(session, collection, in_words(needed))
    session.server.audit(session, f"may not {in_words(needed)} collection 0x{collection:x}")
    raise CommandRefused(Status.EACCESS, f"it needs {in_words(needed)} in collection 0x{collection:x}")


def check_place(session: Session, frame: Frame, rule: Rule) -> None:
    """Refuse a request for which the user lacks a privilege in the collection of its key."""
    collection = session.collection if session.knows_collections else 0
    rights = rights_in(session, collection)
    if rights <= _LOGIN and session.knows_collections:
        raise _hidden_refusal(session, collection, name_of(frame.opcode))
    check_rights(session, frame, rule, rights)


def _hidden_refusal(session: Session, collection: int, what: str) -> CommandRefused:
    """Log the attempt, and return the refusal of a collection in which the user has no privilege: as if it did not
    exist.
    """
    session.server.audit(session, f"may not {what} in collection 0x{collection:x}")
    return session.store_bucket.collections.unknown_collection(collection)
