"""Sub-document commands: look up and change parts of documents and of their attributes by path (kv.md 6).

A request that changes several paths is one change of the document: either all paths change, or none. In a request,
attributes come before the body, because their macros and checks use the document before the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from headwater.errors import StorageError
from headwater.node.kv import documents, values
from headwater.node.kv.answering import StagedChange
from headwater.node.kv.command import handles
from headwater.node.kv.framing import preserves_ttl
from headwater.node.kv.subdoc import attributes, editing, in_turns
from headwater.node.kv.subdoc.attributes import ChangeNumbers
from headwater.node.kv.subdoc.editing import ARRAYS_OF_THE_ROOT, EDITS, LOOKUPS, find, get
from headwater.node.kv.subdoc.in_turns import EditedBody
from headwater.node.kv.subdoc.path import Path, check_length, parse
from headwater.node.kv.vbuckets import check_served
from headwater.node.refused import CommandRefused
from headwater.node.storage.staging import ArenaFull
from headwater.wire import subdoc as wire
from headwater.wire import times, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import BODY_BYTES_MAX, VALUE_BYTES_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.subdoc import DocumentFlag, LookupSpec, MutationSpec, PathFlag

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.storage.records import StoredDocument

Answered = TypeVar("Answered", wire.SubdocStored, wire.SubdocMultiStored)

Mutation: TypeAlias = wire.SubdocMutation | wire.SubdocMultiMutation

# Plain numbers, because `&` of an enum creates an enum each time, which would take a quarter of a lookup's time.
_MKDIR_P, _XATTR, _EXPAND_MACROS = (int(each) for each in PathFlag)
_MKDOC, _ADD, _ACCESS_DELETED, _CREATE_AS_DELETED, _REVIVE = (int(each) for each in DocumentFlag)
_OK, _GET = int(Status.SUCCESS), int(Opcode.GET)
_LOOKUP_FLAGS = _XATTR
_LOOKUP_DOC_FLAGS = _ACCESS_DELETED
_MUTATION_FLAGS = _MKDIR_P | _XATTR | _EXPAND_MACROS
_DOC_FLAGS = sum(DocumentFlag)
_MAKES = _MKDOC | _ADD
_MULTI_LOOKUPS = frozenset({*LOOKUPS, Opcode.GET})
_BODIES = frozenset({Opcode.SET, Opcode.ADD, Opcode.DELETE})
_MULTI_EDITS = frozenset({*EDITS, *_BODIES, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR})
RESULTS_BYTES_MAX = BODY_BYTES_MAX - wire.SPECS_MAX * wire.RESULT_BYTES
"""The most bytes that all values of one lookup may have together: what fits into an answer."""


# --- looking up -------------------------------------------------------------------------------------------------------


class DocumentView:
    """A document for lookups by path; it is decoded at the first path.

    Frequent lookups use no cached properties, because these take a lock in Python 3.11, a microsecond each time.
    """

    def __init__(self, document: StoredDocument, vb_uuid: int, now: int) -> None:
        self.document: Final = document
        self.vb_uuid: int = vb_uuid
        self.now: int = now
        self._parts: tuple[bytes, bytes] | None = None
        self._text: bytes | None = None

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """The section of attributes, with its length in front, and the body."""
        if self._parts is None:
            self._parts = values.body_of(self.document)
        return self._parts

    @cached_property
    def pairs(self) -> dict[str, bytes]:
        """The attributes by name, each as JSON."""
        return _pairs(self.parts[0])

    @property
    def text(self) -> bytes:
        """The body. Raises CommandRefused with SUBDOC_DOC_NOTJSON if it is not JSON."""
        if self._text is None:
            self._text = _text(self.parts[1])
        return self._text

    def look(self, opcode: int, flags: int, path: bytes) -> bytes:
        """Return the value at one path. Raises CommandRefused, with the path's status, if the lookup fails."""
        if opcode == _GET:
            return self.parts[1]
        components = parse(path)
        text = self._attribute(components) if flags & _XATTR else self.text
        return LOOKUPS[opcode](text, components)

    def _attribute(self, path: Path) -> bytes:
        """Return a JSON dictionary with one attribute as its only member, for a path that begins with the attribute's
        name.
        """
        name = attributes.name_of(path)
        if name.startswith("$"):
            return _only(name, self._virtual_attribute(name).encode())
        return _attribute(self.pairs, name)

    def _virtual_attribute(self, name: str) -> str:
        """Return a computed attribute."""
        if name == "$XTOC":
            return attributes.contents_attribute(self.pairs)
        if name == "$vbucket":
            return attributes.vbucket_attribute(self.now)
        return attributes.document_attribute(self.document, self.parts[1], self.vb_uuid)


def _pairs(section: bytes) -> dict[str, bytes]:
    return xattr.split(section)[0] if section else {}


def _attribute(pairs: Mapping[str, bytes], name: str) -> bytes:
    """Return a JSON dictionary with one attribute as its only member; empty if there is no such attribute.

    Clients and other servers send attributes as a whole, so these may be invalid JSON, whatever their datatype.
    """
    if name not in pairs:
        return b"{}"
    if not values.is_json(pairs[name]):
        raise CommandRefused(Status.XATTR_EINVAL, f"attribute {name!r} is no JSON")
    return _only(name, pairs[name])


def _only(name: str, text: bytes) -> bytes:
    return b"{%b:%b}" % (editing.quoted(name), text)


def _text(body: bytes) -> bytes:
    """Return the body of a document if it is JSON, otherwise raise CommandRefused. The datatype does not prove that it
    is JSON, because another server may have sent a wrong one.
    """
    if not values.is_json(body):
        raise CommandRefused(Status.SUBDOC_DOC_NOTJSON, "the document is no JSON")
    return body


def _view(
    session: Session, request: wire.SubdocLookup | wire.SubdocMultiLookup, *, counts: bool = True
) -> DocumentView:
    doc_flags = request.doc_flags or 0
    if doc_flags & ~_LOOKUP_DOC_FLAGS:
        raise CommandRefused(Status.EINVAL, f"document flags 0x{doc_flags:02x} mean nothing when looking up")
    session.store_bucket.counters["cmd_get"] += counts
    document = documents.newest(session, request)
    if document is None or (document.deleted and not doc_flags & _ACCESS_DELETED):
        raise CommandRefused(Status.KEY_ENOENT)
    session.store_bucket.counters["get_hits"] += counts
    if (lock_cas := documents.shown_cas(session, request)) is not None:
        document = replace(document, cas=lock_cas)
    bucket = session.store_bucket
    return DocumentView(document, bucket.vbuckets[request.vbucket].failover.newest.vb_uuid, bucket.now())


def _check_attribute_flags(session: Session, flags: int, allowed: int) -> None:
    if flags & ~allowed:
        raise CommandRefused(Status.EINVAL, f"path flags 0x{flags:02x}: only 0x{int(allowed):02x} mean something here")
    if flags & _XATTR and not session.has(Feature.XATTR):
        raise CommandRefused(Status.NOT_SUPPORTED, "extended attributes were not negotiated by HELLO")
    if flags & _EXPAND_MACROS and not flags & _XATTR:
        raise CommandRefused(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, "macros are for attributes only")


@handles(wire.SubdocGet, document=True)
def get_path(session: Session, request: wire.SubdocGet) -> wire.SubdocValue:
    """Answer SUBDOC_GET with the value, as in the document."""
    return _look_up(session, request, Opcode.SUBDOC_GET)


@handles(wire.SubdocExists, document=True)
def path_exists(session: Session, request: wire.SubdocExists) -> wire.SubdocValue:
    """Answer SUBDOC_EXISTS with a status, and without a value."""
    return _look_up(session, request, Opcode.SUBDOC_EXISTS)


@handles(wire.SubdocGetCount, document=True)
def count_path(session: Session, request: wire.SubdocGetCount) -> wire.SubdocValue:
    """Answer SUBDOC_GET_COUNT with a decimal number."""
    return _look_up(session, request, Opcode.SUBDOC_GET_COUNT)


def _look_up(session: Session, request: wire.SubdocLookup, opcode: Opcode) -> wire.SubdocValue:
    if request.path_bytes != len(request.value):
        raise CommandRefused(Status.EINVAL, f"a path of {request.path_bytes} bytes in {len(request.value)}")
    _check_attribute_flags(session, request.flags, _LOOKUP_FLAGS)
    view = _view(session, request)
    value = view.look(opcode, request.flags, request.value)
    datatype = Datatype.JSON if value and session.has(Feature.JSON) else 0
    return wire.SubdocValue(value=value, datatype=int(datatype), cas=view.document.cas, status=_status(view.document))


def _status(document: StoredDocument) -> Status:
    return Status.SUBDOC_SUCCESS_DELETED if document.deleted else Status.SUCCESS


@handles(wire.SubdocMultiLookup, document=True)
def look_up_paths(
    session: Session, request: wire.SubdocMultiLookup
) -> wire.SubdocMultiLookupResponse | Awaitable[wire.SubdocMultiLookupResponse]:
    """Answer SUBDOC_MULTI_LOOKUP: each path has a status; the answer's status is SUBDOC_MULTI_PATH_FAILURE if a path
    failed.

    A path may scan up to 20 MiB. If a lookup takes longer than a turn, it starts again, with a turn for each path.
    """
    _check_specs(session, [spec[:3] for spec in request.specs], _MULTI_LOOKUPS, frozenset({Opcode.GET}), _LOOKUP_FLAGS)
    view = _view(session, request)
    results = list[tuple[int, bytes]]()
    for spec in request.specs:
        if results and session.connection.turn_is_over():
            return _look_up_in_turns(session, request)
        results.append(_result(view, spec, results))
    return _looked_up(view, results)


async def _look_up_in_turns(session: Session, request: wire.SubdocMultiLookup) -> wire.SubdocMultiLookupResponse:
    """Look up paths, with turns for other work in between. Until the request gets a place among the large ones, it
    keeps no document in memory.
    """
    queue, results = session.server.run_queue, list[tuple[int, bytes]]()
    async with queue.large:
        view = _view_again(session, request)
        session.saw_unstable()  # if its batch is lost between two paths, no answer may show this version
        for spec in request.specs:
            await queue.turn()
            results.append(_result(view, spec, results))
    return _looked_up(view, results)


def _view_again(session: Session, request: wire.SubdocMultiLookup) -> DocumentView:
    """Return the present document, if this node still serves its vbucket and collection; raise CommandRefused
    otherwise.
    """
    # Other requests were handled since this one was admitted, so its checks are made again.
    bucket = session.store_bucket
    check_served(session, request.vbucket)
    if session.collection not in bucket.vbuckets[request.vbucket].collections.alive:
        raise bucket.collections.missing_in(bucket.vbuckets[request.vbucket], session.collection)
    if request.vbucket in bucket.durable_writes.held:
        bucket.durable_writes.refuse_in_flight(request.vbucket, session.collection, request.key, writes=False)
    try:
        return _view(session, request, counts=False)
    except ArenaFull:  # the document has expired, and its tombstone has no room
        raise CommandRefused(Status.ETMPFAIL, "the batch is full") from None


def _looked_up(view: DocumentView, results: list[tuple[int, bytes]]) -> wire.SubdocMultiLookupResponse:
    status = _status(view.document)
    if any(each for each, _ in results):
        deleted = view.document.deleted
        status = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED if deleted else Status.SUBDOC_MULTI_PATH_FAILURE
    return wire.SubdocMultiLookupResponse(results=results, cas=view.document.cas, status=status)


def _result(view: DocumentView, spec: LookupSpec, before: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Return the status and the value of a path.

    `before` are the results of the earlier paths: the status is E2BIG if all values together are too large for an
    answer.
    """
    try:
        part = view.look(*spec)
    except CommandRefused as refused:
        return refused.status, b""
    if len(part) + sum(len(value) for _, value in before) > RESULTS_BYTES_MAX:
        return int(Status.E2BIG), b""
    return _OK, part


def _check_specs(
    session: Session, specs: Sequence[LookupSpec], opcodes_known: frozenset[int], whole: frozenset[int], flags: int
) -> None:
    """Check the paths of one request against the rules for all of them together (kv.md 6.3)."""
    if not 1 <= len(specs) <= wire.SPECS_MAX:
        raise CommandRefused(Status.SUBDOC_INVALID_COMBO, f"{len(specs)} paths, 1 to {wire.SPECS_MAX} are allowed")
    names, body_seen, is_gone = set(), False, False
    for opcode, path_flags, path in specs:
        check_length(path)
        if opcode not in opcodes_known:
            raise CommandRefused(Status.SUBDOC_INVALID_COMBO, f"opcode 0x{opcode:02x} can't be one of several paths")
        _check_attribute_flags(session, path_flags, flags)
        if opcode in whole and (path or path_flags & _XATTR):
            raise CommandRefused(Status.EINVAL, f"opcode 0x{opcode:02x} is about the whole body and has no path")
        is_attribute = bool(path_flags & _XATTR)
        if is_attribute and body_seen:
            raise CommandRefused(Status.SUBDOC_INVALID_XATTR_ORDER, "attributes come before the body")
        if not is_attribute and is_gone:
            raise CommandRefused(Status.SUBDOC_INVALID_COMBO, "a path into the body stands behind the body's deletion")
        body_seen |= not is_attribute
        is_gone |= opcode == Opcode.DELETE
        if is_attribute and not path.startswith(b"$"):
            names.add(attributes.name_of(parse(path)))
    if len(names) > 1 and not session.has(Feature.SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS):
        raise CommandRefused(Status.SUBDOC_XATTR_INVALID_KEY_COMBO, f"{len(names)} attributes, one is allowed")


# --- changing ---------------------------------------------------------------------------------------------------------


class PathRefused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A path could not be changed.

    Attributes:
        index: the path's index in the request.
        status: the path's status.
        why: the reason, for people.
    """

    def __init__(self, index: int, status: int, why: str) -> None:
        super().__init__(index, status, why)
        self.index: int = index
        self.status: int = status
        self.why: Final = why


@dataclass
class Draft:
    """A document during a change: its attributes and its body.

    Attributes:
        old: the version before the change, which may be a tombstone; None if the key has no version.
        numbers: the numbers of the change.
        pairs: the attributes by name.
        body: the body.
        has_body: False for a tombstone that remains one.
        results: the values for the answer, by the path's index.
    """

    old: StoredDocument | None
    numbers: ChangeNumbers
    pairs: dict[str, bytes]
    body: bytes
    has_body: bool = True
    results: dict[int, bytes] = field(default_factory=dict)
    _edited: bytes | None = None

    def apply(self, specs: Sequence[MutationSpec], edits: EditedBody | None = None) -> None:
        """Apply the changes of all paths in their order.

        Args:
            specs: the changes.
            edits: the edits of the body, if these were prepared (in_turns.py); None otherwise.

        Raises:
            PathRefused: a change is impossible; the draft must not be used any more.
        """
        if edits is None or not isinstance(edits.edited, Draft):
            for index, spec in enumerate(specs):
                self.apply_one(index, spec)
            return
        # Attributes are never edited in advance, because their macros need the numbers of the change.
        for index, spec in enumerate(specs):
            if spec[1] & _XATTR:
                self.apply_one(index, spec)
        if edits.refusal is not None:
            raise edits.refusal
        self.body = edits.edited.body
        self.results |= edits.edited.results

    def apply_one(self, index: int, spec: MutationSpec) -> None:
        """Apply the change of one path. Raises PathRefused if the change is impossible."""
        try:
            value = self._apply(*spec)
        except CommandRefused as refused:
            raise PathRefused(index, refused.status, refused.context) from None
        if value:
            self.results[index] = value

    def _apply(self, opcode: int, flags: int, path: bytes, value: bytes) -> bytes:
        if not self.has_body and not flags & _XATTR:
            raise CommandRefused(Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE, "a tombstone has attributes only")
        if opcode in _BODIES:
            self.body = b"" if opcode == Opcode.DELETE else value
            return b""
        components = parse(path)
        if opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR:
            self.body = get(_attribute(self.pairs, attributes.name_of(components)), components)
            return b""
        if not components and opcode not in ARRAYS_OF_THE_ROOT:
            raise CommandRefused(Status.EINVAL, "the path is empty")
        if flags & _EXPAND_MACROS:
            value = attributes.expanded(value, self.numbers, self.old)
        if flags & _XATTR:
            return self._edit_attribute(opcode, components, value, flags)
        text = self.body if self.body is self._edited else _text(self.body)
        edit = EDITS[opcode](text, components, value, _mkdir(flags))
        self.body = self._edited = edit.text  # still JSON after the edit: no new check for the next path
        return edit.result

    def _edit_attribute(self, opcode: int, path: Path, value: bytes, flags: int) -> bytes:
        name = attributes.name_of(path)
        if name.startswith("$"):
            raise CommandRefused(Status.SUBDOC_XATTR_CANT_MODIFY_VATTR, f"{name} is made, never stored")
        edit = EDITS[opcode](_attribute(self.pairs, name), path, value, _mkdir(flags))
        if find(edit.text, (name,)).missing:
            self.pairs.pop(name, None)
        else:
            self.pairs[name] = get(edit.text, (name,))
        return edit.result


def _mkdir(flags: int) -> bool:
    return bool(flags & _MKDIR_P)


@handles(
    wire.SubdocDictAdd,
    wire.SubdocDictUpsert,
    wire.SubdocDelete,
    wire.SubdocReplace,
    wire.SubdocArrayPushLast,
    wire.SubdocArrayPushFirst,
    wire.SubdocArrayInsert,
    wire.SubdocArrayAddUnique,
    wire.SubdocCounter,
    document=True,
    writes=True,
)
def change_path(session: Session, request: wire.SubdocMutation) -> wire.SubdocStored | Awaitable[wire.SubdocStored]:
    """Answer a change of one path; the answer has the path's status, and the path's result as value."""
    if request.path_bytes > len(request.value):
        raise CommandRefused(Status.EINVAL, f"a path of {request.path_bytes} bytes in {len(request.value)}")
    _check_attribute_flags(session, request.flags, _MUTATION_FLAGS)
    path, value = request.value[: request.path_bytes], request.value[request.path_bytes :]
    if request.layout.opcode == Opcode.SUBDOC_DELETE and value:
        raise CommandRefused(Status.EINVAL, "SUBDOC_DELETE has no value")
    try:
        stored, results = _change(session, request, [(request.layout.opcode, request.flags, path, value)])
    except PathRefused as refused:
        raise CommandRefused(refused.status, refused.why) from None
    return _answer(wire.SubdocStored, stored, value=results.get(0, b""))


@handles(wire.SubdocMultiMutation, document=True, writes=True)
def change_paths(
    session: Session, request: wire.SubdocMultiMutation
) -> wire.SubdocMultiStored | wire.SubdocPathFailure | Awaitable[wire.SubdocMultiStored]:
    """Answer SUBDOC_MULTI_MUTATION, which changes all paths or none. The answer to a failure has the index and status
    of the first path that failed.
    """
    specs = request.specs
    _check_specs(session, [spec[:3] for spec in specs], _MULTI_EDITS, _BODIES, _MUTATION_FLAGS)
    try:
        stored, values = _change(session, request, specs)
    except PathRefused as refused:
        return wire.SubdocPathFailure(
            status=Status.SUBDOC_MULTI_PATH_FAILURE, index=refused.index, path_status=refused.status
        )
    results = [(index, int(Status.SUCCESS), value) for index, value in values.items()]
    return _answer(wire.SubdocMultiStored, stored, results=results)


def _answer(answer: type[Answered], changed: ChangedPaths, **parts: Any) -> Answered | Awaitable[Answered]:
    stored = changed.staged.stored
    return changed.staged.answer(
        answer(cas=stored.cas, vb_uuid=stored.vb_uuid, seqno=stored.seqno, status=changed.status, **parts)
    )


class ChangedPaths(NamedTuple):
    """A staged change, and the status of the answer."""

    staged: StagedChange
    status: Status


def _change(
    session: Session, request: Mutation, specs: Sequence[MutationSpec]
) -> tuple[ChangedPaths, dict[int, bytes]]:
    """Apply the changes to the document, and stage the result. Return the staged change, and the values for the answer
    by the path's index.

    Raises:
        PathRefused: a path can't be changed; nothing is staged.
        CommandRefused: the document can't be changed; nothing is staged.
        NoRoom: the edits of a large body are being prepared; the request must be handled again.
    """
    bucket = session.store_bucket
    _check_doc_flags(request.doc_flags or 0, request.cas)
    old = documents.newest(session, request)
    of_tombstone = _stays_deleted(request, old, request.doc_flags or 0)
    edits = None if of_tombstone else _edits(session, request, specs, old)
    # The CAS and the seqno are known before staging, because nothing else is staged in this turn; macros write them
    # into the document.
    numbers = ChangeNumbers(bucket.next_cas(request.vbucket), bucket.store.index.high_seqno(request.vbucket) + 1)
    if any(flags & _EXPAND_MACROS and attributes.needs_body(value) for _, flags, _, value in specs):
        rehearsed = _draft(request, old, specs, numbers, of_tombstone)
        rehearsed.apply(specs, edits)
        numbers = numbers._replace(body=rehearsed.body)
    draft = _draft(request, old, specs, numbers, of_tombstone)
    draft.apply(specs, edits)
    if of_tombstone:
        staged = _stage_tombstone(session, request, draft, draft.pairs)
        return ChangedPaths(staged, Status.SUBDOC_SUCCESS_DELETED), draft.results
    if any(opcode == Opcode.DELETE for opcode, *_ in specs):
        if old is None or old.deleted:
            raise CommandRefused(Status.KEY_ENOENT, "there is nothing to delete")
        # "Deleting a document drops the body and every user xattr and keeps system xattrs" (wire 9).
        system_attributes = {name: text for name, text in draft.pairs.items() if name.startswith("_")}
        return ChangedPaths(_stage_tombstone(session, request, draft, system_attributes), Status.SUCCESS), draft.results
    return ChangedPaths(_stage_document(session, request, draft), Status.SUCCESS), draft.results


def _edits(
    session: Session, request: Mutation, specs: Sequence[MutationSpec], old: StoredDocument | None
) -> EditedBody | None:
    """Return the edits of a large body that were prepared for this request. Return None if the caller should edit the
    body itself: the edits are short, or the document changed during each of several preparations.

    Raises:
        NoRoom: the edits are being prepared; the request must be handled again.
    """
    prepared = session.preparation.done
    attempts = 0
    if isinstance(prepared, EditedBody):
        if prepared.is_of(specs, old):
            return prepared
        attempts = prepared.attempts
    size = 0 if old is None else values.inflated_bytes(old)
    if attempts >= in_turns.ATTEMPTS_MAX or not in_turns.is_long(specs, size):
        return None
    read = partial(_to_edit, session, request, specs)
    work = in_turns.edit(session.server.run_queue, specs, attempts + 1, read, PathRefused)
    raise session.preparation.begin(session.server.loop, work)


def _to_edit(
    session: Session, request: Mutation, specs: Sequence[MutationSpec]
) -> tuple[in_turns.Version, Draft] | None:
    """Return the version of the present document, and its draft; None if the request must be checked again first."""
    bucket = session.bucket  # None if the user has lost all roles in it meanwhile
    if bucket is None or not bucket.is_active(request.vbucket):
        return None
    try:
        old = bucket.store.document(request.vbucket, request.key, session.collection)
        return in_turns.version_of(old), _draft(request, old, specs, ChangeNumbers(0, 0), of_tombstone=False)
    except (CommandRefused, StorageError):  # the stored document is invalid or damaged
        return None


def _check_doc_flags(doc_flags: int, cas: int) -> None:
    if doc_flags & ~_DOC_FLAGS:
        raise CommandRefused(Status.EINVAL, f"document flags 0x{doc_flags:02x}: only 0x{_DOC_FLAGS:02x} are known")
    if doc_flags & _MAKES == _MAKES:
        raise CommandRefused(Status.EINVAL, "MKDOC and ADD exclude each other")
    if doc_flags & _ADD and cas:
        raise CommandRefused(Status.EINVAL, "what is added has no CAS yet")
    if doc_flags & _CREATE_AS_DELETED and not doc_flags & _MAKES:
        raise CommandRefused(Status.EINVAL, "CREATE_AS_DELETED goes with MKDOC or ADD")
    if doc_flags & _REVIVE and doc_flags & _CREATE_AS_DELETED:
        raise CommandRefused(Status.EINVAL, "REVIVE_DOCUMENT and CREATE_AS_DELETED exclude each other")


def _stays_deleted(request: Mutation, old: StoredDocument | None, doc_flags: int) -> bool:
    """Return True if the change is one of a tombstone, which remains one; False for a live or new document.

    Raises:
        CommandRefused: the document flags or the CAS do not allow the change.
    """
    if old is not None and not old.deleted:
        if doc_flags & _REVIVE:
            raise CommandRefused(Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS)
        if doc_flags & _ADD:
            raise CommandRefused(Status.KEY_EEXISTS)
        documents.check_cas(request, old)
        return False
    if old is not None and doc_flags & _ACCESS_DELETED:
        if doc_flags & _ADD:  # with ACCESS_DELETED a tombstone exists: another transaction may have staged it
            raise CommandRefused(Status.KEY_EEXISTS)
        documents.check_cas(request, old)
        return not doc_flags & _REVIVE
    if request.cas or not doc_flags & _MAKES:
        raise CommandRefused(Status.KEY_ENOENT)
    return bool(doc_flags & _CREATE_AS_DELETED)


def _draft(
    request: Mutation,
    old: StoredDocument | None,
    specs: Sequence[MutationSpec],
    numbers: ChangeNumbers,
    of_tombstone: bool,
) -> Draft:
    """Return a draft with the present document; with `{}` or `[]` as its body if the document is new."""
    section, body = (b"", b"") if old is None else values.body_of(old)
    if old is not None and old.deleted and not (request.doc_flags or 0) & _ACCESS_DELETED:
        section = values.system_attributes(old)  # without ACCESS_DELETED only the system attributes survive
    if of_tombstone:
        return Draft(old, numbers, _pairs(section), b"", has_body=False)
    if old is not None and not old.deleted:
        return Draft(old, numbers, _pairs(section), body)
    return Draft(old, numbers, _pairs(section), _root(specs))


def _root(specs: Sequence[MutationSpec]) -> bytes:
    """Return the empty document, `{}` or `[]`, that the first path into the body needs."""
    for opcode, flags, path, _ in specs:
        if not flags & _XATTR and opcode in EDITS:
            return b"[]" if path.startswith(b"[") or (not path and opcode in ARRAYS_OF_THE_ROOT) else b"{}"
    return b"{}"


def _section(pairs: Mapping[str, bytes], body: bytes = b"") -> bytes:
    """Return the value that joins attributes and body. Raises CommandRefused if it is too large or invalid."""
    value = xattr.join(pairs, body) if pairs else body
    if len(value) > VALUE_BYTES_MAX:
        raise CommandRefused(Status.E2BIG, f"the value would have {len(value)} bytes")
    if pairs:
        values.check_attributes(value)
    return value


def _stage_document(session: Session, request: Mutation, draft: Draft) -> StagedChange:
    bucket, vb, old = session.store_bucket, request.vbucket, draft.old
    alive = None if old is None or old.deleted else old
    datatype = (Datatype.XATTR if draft.pairs else 0) | (Datatype.JSON if values.is_json(draft.body) else 0)
    seqno, write = documents.stage(
        session,
        request,
        _section(draft.pairs, draft.body),
        cas=draft.numbers.cas,
        old=old,
        flags=0 if alive is None else alive.flags,
        expiry=_expiry(session, request, alive),
        datatype=int(datatype),
    )
    bucket.counters["cmd_set"] += 1
    documents.end_lock(session, request)
    return StagedChange(documents.changed(session, vb, seqno, draft.numbers.cas), write)


def _expiry(session: Session, request: Mutation, old: StoredDocument | None) -> int:
    """Return the new expiry; a request without an expiry removes it, unless it preserves the old one."""
    if old is not None and preserves_ttl(request):
        return old.expiry
    return documents.limited(session, times.absolute_expiry(request.expiration or 0, session.store_bucket.now()))


def _stage_tombstone(session: Session, request: Mutation, draft: Draft, pairs: Mapping[str, bytes]) -> StagedChange:
    bucket, vb = session.store_bucket, request.vbucket
    datatype = int(Datatype.XATTR) if pairs else 0
    seqno, write = documents.stage_tombstone(
        session, request, _section(pairs), cas=draft.numbers.cas, old=draft.old, datatype=datatype
    )
    bucket.counters["cmd_delete"] += 1
    documents.end_lock(session, request)
    return StagedChange(documents.changed(session, vb, seqno, draft.numbers.cas), write)
