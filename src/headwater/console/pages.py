"""The pages about the nodes, the vbuckets and the documents. A handler reads from the desk and fills in a template."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headwater.cluster.answers import number_of
from headwater.cluster.status import status
from headwater.console import editing, figures
from headwater.console.desk import Desk, desk_of, may, status_of
from headwater.console.editing import DocumentForm, Form, ShownDocument
from headwater.console.guard import form_of
from headwater.console.listing import KeyList, ListPlace, list_keys
from headwater.console.lookout import Look, TimedAnswer, plain
from headwater.errors import HeadwaterError, KeyExists, KeyNotFound, NotSupported, OptionError, UnknownCommand
from headwater.wire.datatype import Datatype

READ_TRIES = 5
DONE = {
    "stored": "The document is stored, and on disk.",
    "deleted": "The document is deleted, and that is on disk.",
}
"""Messages about a finished operation, by the word in the address."""
OVERTAKEN = (
    "It was changed or deleted by somebody else after you read it, and nothing was stored. What you wrote is below; it "
    "replaces what is there now only if you choose that."
)
EXPIRY = frozenset({"keep", "never", "in"})


async def overview(request: Request) -> Response:
    """Show the cluster: its nodes, their problems, the owners of vbuckets."""
    desk = desk_of(request)
    latest = await desk.lookout.look()
    if latest.answer is None:
        return desk.render(request, "silent.html", {"title": "Cluster", "said": latest}, 503)
    general = await desk.lookout.stats_by_node("")
    rows = figures.vbucket_rows(latest.answer.survey)
    context = {
        "title": "Cluster",
        "said": latest,
        "look": latest.answer,
        "status": status(latest.answer.survey),
        "general": general,
        "cells": figures.owner_classes(rows, latest.answer.survey.map.servers),
        "troubled": sum(bool(row.trouble) for row in rows),
        "number_of": number_of,
    }
    return desk.render(request, "overview.html", context)


async def vbuckets(request: Request) -> Response:
    """Show all vbuckets, a page at a time; on request those of one owner, or those in trouble."""
    desk = desk_of(request)
    look, latest = await _latest_look(desk)
    rows = figures.vbucket_rows(look.survey)
    owner, only = request.query_params.get("owner", ""), request.query_params.get("only", "")
    selected = [row for row in rows if owner in ("", str(row.owner)) and (only != "trouble" or row.trouble)]
    part = figures.paged(selected, figures.page_of(request.query_params))
    params_ = {name: value for name, value in (("owner", owner), ("only", only)) if value}
    context = {
        "title": "Vbuckets",
        "said": latest,
        "look": look,
        "part": part,
        "owner": owner,
        "only": only,
        "to_page": lambda page: "/vbuckets?" + urlencode(params_ | {"page": page}),
    }
    return desk.render(request, "vbuckets.html", context)


async def vbucket(request: Request) -> Response:
    """Show one vbucket: each copy, and its failover log."""
    desk, number = desk_of(request), int(request.path_params["number"])
    look, latest = await _latest_look(desk)
    if number >= look.survey.map.vbuckets:
        raise HTTPException(404, f"this bucket has the vbuckets 0 to {look.survey.map.vbuckets - 1}")
    row = figures.vbucket_row(look.survey, number)
    logs = {}
    for copy in row.copies:
        if copy.state is not None:
            logs[copy.address] = await _log(desk, copy, number)
    context = {"title": f"Vbucket {number}", "said": latest, "look": look, "row": row, "logs": logs}
    return desk.render(request, "vbucket.html", context)


async def _log(desk: Desk, copy: figures.CopyRow, number: int) -> TimedAnswer[list[tuple[int, int]]]:
    try:
        return TimedAnswer(await desk.lookout.logs(copy.address, number))
    except HeadwaterError as error:
        return TimedAnswer(None, 0.0, plain(error))


async def _latest_look(desk: Desk) -> tuple[Look, TimedAnswer[Look]]:
    latest = await desk.lookout.look()
    if latest.answer is None:
        raise HTTPException(503, f"no node answers: {latest.problem}")
    return latest.answer, latest


# --------------------------------------------------------------------------- documents


async def documents(request: Request) -> Response:
    """Show a document by its key, the keys with a prefix, or the forms for both."""
    fields = request.query_params
    outcome = DONE.get(fields.get("done", ""), "")
    if "key" not in fields:
        return await (_list_page(request) if "prefix" in fields else _documents(request, outcome=outcome))
    try:
        key = editing.read_key(fields["key"], Form.of(fields.get("form", "")))
    except OptionError as error:
        return await _documents(request, problem=plain(error), status=400, typed=fields["key"])
    return await _documents(request, key=key, outcome=outcome, form=Form.of(fields["as"]) if fields.get("as") else None)


async def _list_page(request: Request) -> Response:
    """Show a page of the keys with a prefix."""
    desk, fields = desk_of(request), request.query_params
    try:
        prefix = editing.read_part(fields["prefix"], Form.of(fields.get("form", "")))
        vbuckets = (await desk.client()).map.vbuckets
        documents = await desk.documents(_collection(fields))
        keys = await list_keys(documents, vbuckets, prefix, ListPlace.of(fields, vbuckets))
    except HeadwaterError as error:
        return await _documents(request, problem=_not_listed(error), status=status_of(error))
    return await _documents(request, key_list=keys)


def _not_listed(error: HeadwaterError) -> str:
    is_old = isinstance(error, UnknownCommand | NotSupported)
    return plain(error) + (": this server can't list keys; read documents by theirs" if is_old else "")


async def value(request: Request) -> Response:
    """Send the value of a document as a file, byte for byte, whatever its size; the browser must not interpret it."""
    desk, fields = desk_of(request), request.query_params
    try:
        key = editing.read_key(fields.get("key", ""), Form.of(fields.get("form", "")))
        document = await (await desk.documents(fields.get("collection", ""))).get(key)
    except HeadwaterError as error:
        raise HTTPException(status_of(error), plain(error)) from None
    name = {"content-disposition": f"attachment; filename*=UTF-8''{quote(key, safe='')}"}
    return Response(document.value, media_type="application/octet-stream", headers=name)


async def store(request: Request) -> Response:
    """Store a document over the version that the form was made from; a new one only if there is none.

    A refused document comes back as a draft with the CAS that it had. It replaces a newer version only if the user, to
    whom that version is shown, chooses so.
    """
    desk = desk_of(request)
    fields = await form_of(request, desk.secrets.token)
    key, draft, collection = b"", DocumentForm.of(fields), _collection(fields)
    try:
        key = editing.read_key(fields.get("key", ""), Form.of(fields.get("form", "")))
        value = editing.read_field(draft.text, draft.form)
        await _write(desk, key, value, fields)
    except (KeyExists, KeyNotFound):
        return await _documents(request, key=key, problem=OVERTAKEN, status=409, draft=draft, collection=collection)
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
        return await _documents(request, key=key, problem=problem, status=status, draft=draft, collection=collection)
    return _redirect(key, "stored", collection)


async def _write(desk: Desk, key: bytes, value: bytes, fields: dict[str, str]) -> None:
    client, flags = await desk.documents(_collection(fields)), _number(fields, "flags")
    cas = _number(fields, "over" if fields.get("over") else "cas")
    expiry = await _expiry(desk, key, fields)
    if cas:
        await client.set(key, value, flags=flags, expiry=expiry, cas=cas)
    else:
        await client.add(key, value, flags=flags, expiry=expiry)


async def _expiry(desk: Desk, key: bytes, fields: dict[str, str]) -> int:
    """Return the expiry to store. To keep the document's own expiry it is read first, since a plain SET would remove
    it.

    If another writer replaces that version meanwhile, the CAS refuses the write.
    """
    mode = fields.get("expiry", "never")
    if mode not in EXPIRY:
        raise OptionError("expiry", mode, "keep, never or in")
    if mode == "keep":
        return (await (await desk.documents(_collection(fields))).get_meta(key)).expiry
    return _number(fields, "seconds") if mode == "in" else 0


def _number(fields: dict[str, str], name: str) -> int:
    if (number := editing.number_in(fields.get(name, ""))) is None:
        raise OptionError(name, fields[name][:40], "a whole number")
    return number


async def delete(request: Request) -> Response:
    """Delete the version of a document that the form was made from."""
    desk = desk_of(request)
    fields = await form_of(request, desk.secrets.token)
    key = b""
    try:
        key = editing.read_key(fields.get("key", ""), Form.of(fields.get("form", "")))
        if not (cas := _number(fields, "cas")):
            raise OptionError("cas", 0, "that of the version which is to go")
        await (await desk.documents(_collection(fields))).delete(key, cas=cas)
    except KeyExists:
        problem = "It was changed by somebody else after you read it, and nothing was deleted. Look at it again."
        return await _documents(request, key=key, problem=problem, status=409, collection=_collection(fields))
    except HeadwaterError as error:
        problem, status = plain(error), status_of(error)
        return await _documents(request, key=key, problem=problem, status=status, collection=_collection(fields))
    return _redirect(key, "deleted", _collection(fields))


def _redirect(key: bytes, outcome: str, collection: str) -> Response:
    text, form = editing.key_field(key)
    params = {"key": text, "form": form.value, "done": outcome} | ({"collection": collection} if collection else {})
    return RedirectResponse("/documents?" + urlencode(params), 303)


def _collection(fields: Mapping[str, str]) -> str:
    return fields.get("collection", "").strip()


async def _documents(
    request: Request,
    *,
    key: bytes = b"",
    outcome: str = "",
    problem: str = "",
    status: int = 200,
    typed: str = "",
    form: Form | None = None,
    collection: str | None = None,
    draft: DocumentForm | None = None,
    key_list: KeyList | None = None,
) -> Response:
    """Render the page: the outcome or the problem, the forms, and the document or the list if there is one."""
    desk = desk_of(request)
    rights = await desk.rights()
    collection = _collection(request.query_params) if collection is None else collection
    document, missing = None, False
    if key and may(rights, "read"):
        try:
            document = await read(desk, key, collection, form)
        except KeyNotFound:
            missing, status = True, 404 if not outcome and status == 200 else status
        except HeadwaterError as error:
            problem, status = problem or plain(error), status_of(error) if status == 200 else status
    text, key_form = editing.key_field(key) if key else (typed, Form.TEXT)
    context = {
        "title": "Documents",
        "key": key,
        "field": text,
        "form": key_form.value,
        "done": outcome,
        "problem": problem,
        "rights": rights,
        "document": document,
        "missing": missing,
        "draft": draft,
        "form_of": DocumentForm.of_document,
        "new": DocumentForm(),
        "forms": Form,
        "listed": key_list,
        "prefix": request.query_params.get("prefix", ""),
        "prefix_form": Form.of(request.query_params.get("form", "")).value,
        "to_place": lambda place: _address(request, place),
        "collection": collection,
        "vbucket": desk_vbucket(desk, key),
    }
    return desk.render(request, "documents.html", context, status)


def _address(request: Request, place: ListPlace) -> str:
    """Return the address of the page with the part of a list that begins at a place."""
    params = request.query_params
    params_ = {name: params[name] for name in ("form", "collection") if params.get(name)}
    return "/documents?" + urlencode({"prefix": params["prefix"]} | params_ | place.fields())


def desk_vbucket(desk: Desk, key: bytes) -> int | None:
    """Return the vbucket of a key; None while the map is unknown."""
    look = desk.lookout.latest
    return look.survey.map.vbucket_of(key) if look is not None and key else None


async def read(desk: Desk, key: bytes, collection: str = "", form: Form | None = None) -> ShownDocument:
    """Read a document, and the metadata and attributes of the same version.

    Raises:
        KeyNotFound, TransportError, StatusError: as for `get`; KeyExists if it was changed at each try.
    """
    documents = await desk.documents(collection)
    for _ in range(READ_TRIES):
        document = await documents.get(key)
        meta = await documents.get_meta(key)
        has_xattrs = meta.datatype & Datatype.XATTR
        xattrs = await documents.get_xattrs(key) if has_xattrs and meta.cas == document.cas else {}
        # They come by several requests: only under one CAS are they of one version.
        if meta.cas == document.cas and (not xattrs or (await documents.get_meta(key)).cas == meta.cas):
            return editing.shown_document(document, meta, form, xattrs)
    raise KeyExists(f'read "{editing.key_field(key)[0]}": it changes faster than it can be read')
