"""A small real HTTP server that keeps documents as OpenSearch does, checks what it is sent, and has faults to order."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from uuid import uuid4


class SearchIndex:
    """The documents that the server holds, and its faults.

    Attributes:
        documents: by id. versions: of documents and of deletions, by id.
        busy: how many items more are answered 429. down: how many requests more are answered 503.
        unanswered: how many `_bulk` more are done, and their connections cut without an answer.
        poison: items with this in their body are answered 400, with the type and the words of `refusal`. block: the
        status and type that all items are answered with, if any. mapping: what the index was made with. largest: bytes
        of a body, at most.
        login: what the header must say, if anything. uuid: of the index, None while there is none; the first document
        makes one. histories: of its shards; None where the login may not see them. away: how many requests more meet a
        shard that is away. settings: of the index, but those that are as they were. keeps_settings: the login may
        change none. applied: every change that was taken, (id, version, kind).
    """

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, int] = {}
        self.busy = self.down = self.unanswered = 0
        self.poison, self.login = "", ""
        self.block: tuple[int, str] | None = None
        self.refusal = "mapper_parsing_exception", "failed to parse"
        self.mapping: dict[str, Any] = {}
        self.largest = 1 << 30
        self.uuid: str | None = None
        self.histories: list[str] | None = ["h0", "h1"]
        self.away = 0
        self.settings: dict[str, str] = {}
        self.keeps_settings = False
        self.applied: list[tuple[str, int, str]] = []
        self.problems: list[str] = []
        self.visible: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def remove(self) -> None:
        """Be gone, with all documents and versions."""
        self.uuid, self.documents, self.versions, self.visible, self.mapping = None, {}, {}, {}, {}

    def forget(self) -> None:
        """Forget deletions after some minutes, if the settings let it."""
        if self.settings.get("gc_deletes") != "1h":
            self.versions = {name: number for name, number in self.versions.items() if name in self.documents}

    def bulk(self, body: bytes) -> dict[str, Any]:
        assert body.endswith(b"\n"), "the last line is not ended"
        self.uuid = self.uuid or uuid4().hex
        lines, answers = [json.loads(line) for line in body.splitlines()], []
        while lines:
            ((kind, head),) = lines.pop(0).items()
            assert kind in ("index", "delete") and set(head) == {"_id", "version", "version_type"}, head
            assert head["version_type"] in ("external", "external_gte") and isinstance(head["version"], int)
            assert len(head["_id"].encode()) <= 512
            document = lines.pop(0) if kind == "index" else None
            above = head["version"] + (head["version_type"] == "external_gte")
            answers.append({kind: {"_id": head["_id"], **self._one(head["_id"], head["version"], above, document)}})
        return {"took": 1, "errors": any(next(iter(a.values()))["status"] >= 300 for a in answers), "items": answers}

    def _one(self, name: str, version: int, above: int, document: dict[str, Any] | None) -> dict[str, Any]:
        """Apply an item unless what it meets has the version `above` or a higher one."""
        if self.busy:
            self.busy -= 1
            return {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "queue is full"}}
        if self.block is not None:
            return {"status": self.block[0], "error": {"type": self.block[1], "reason": "not now"}}
        if self.versions.get(name, -1) >= above:
            return {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "older"}}
        if document is not None and self.poison and self.poison in document["body"]:
            kind, reason = self.refusal
            return {"status": 400, "error": {"type": kind, "reason": reason}}
        self.versions[name] = version
        self.applied.append((name, version, "delete" if document is None else "index"))
        if document is None:
            return {"status": 200 if self.documents.pop(name, None) else 404, "result": "deleted"}
        self.documents[name] = document
        return {"status": 201, "result": "created"}

    def search(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "aggs" in asked:
            return {"aggregations": self._aggregated(asked["aggs"])}
        boolean = asked["query"]["bool"]
        if "must" in boolean:
            words = boolean["must"][0]["simple_query_string"]["query"].lower().split()
            found = [
                {"_id": name, "_score": 1.0, "highlight": {"body": [document["body"]]}, "_source": document}
                for name, document in sorted(self.visible.items())
                if all(word in document["body"].lower() for word in words)
                and all(_fits(document, wanted) for wanted in boolean["filter"][1:])
            ]
        else:
            found = [
                {"_id": name, "_version": self.versions[name]}
                for name, document in sorted(self.visible.items())
                if all(_fits(document, wanted) for wanted in boolean["filter"])
            ]
        return {"hits": {"hits": found[: asked["size"]]}}

    def _aggregated(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer an aggregation by terms of a field, with the highest or lowest of others in each."""
        ((name, told),) = asked.items()
        inner = {each: next(iter(kind.items())) for each, kind in told["aggs"].items()}
        buckets: dict[int, dict[str, Any]] = {}
        for document in self.visible.values():
            key = document[told["terms"]["field"]]
            bucket = buckets.setdefault(key, {"key": key, **{each: {"value": None} for each in inner}})
            for each, (kind, of) in inner.items():
                number, known = float(document[of["field"]]), bucket[each]["value"]
                bucket[each]["value"] = number if known is None else {"max": max, "min": min}[kind](known, number)
        return {name: {"buckets": list(buckets.values())[: told["terms"]["size"]]}}


def _shards(histories: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The shards of an index, each with a copy that follows and the one that leads."""
    return {
        str(number): [
            {"routing": {"primary": primary, "state": "STARTED"}, "commit": {"user_data": {"history_uuid": history}}}
            for primary in (False, True)
        ]
        for number, history in enumerate(histories)
    }


def _fits(document: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a document passes a filter of the kinds that we use."""
    ((kind, told),) = wanted.items()
    if kind == "bool":
        either, all_of = told.get("should", []), told.get("filter", [])
        return any(_fits(document, each) for each in either) or (
            bool(all_of) and all(_fits(document, e) for e in all_of)
        )
    ((name, value),) = told.items()
    return bool(document[name] < value["lt"] if kind == "range" else document[name] == value)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: ClassVar[SearchIndex]

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.index.lock:
            try:
                status, told = self._answer(body)
            except (AssertionError, KeyError, ValueError) as error:
                self.index.problems.append(f"{self.command} {self.path}: {error!r}")
                status, told = 400, {"error": {"type": "bad", "reason": repr(error)}}
        if self.path.endswith("/_bulk") and status == 200 and self.index.unanswered:
            self.index.unanswered -= 1
            self.close_connection = True
            return
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = _serve  # noqa: N815 -- the names are the library's

    def _answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        index = self.index
        if index.login and self.headers.get("Authorization") != index.login:
            return 401, {"error": {"type": "security_exception", "reason": "who are you?"}}
        if index.down:
            index.down -= 1
            return 503, {}
        if len(body) > index.largest:
            return 413, {}
        is_look = self.path.startswith(("/orders?", "/orders/_stats"))
        path = self.path.partition("=")[0] if is_look else self.path
        match self.command, path:
            case "PUT", "/orders":
                made, index.uuid = index.uuid is None, index.uuid or uuid4().hex
                told = json.loads(body)
                index.settings = {"gc_deletes": told["settings"]["index.gc_deletes"]} if made else index.settings
                index.mapping = told["mappings"] if made else index.mapping
                exists = {"error": {"type": "resource_already_exists_exception", "reason": "exists"}}
                return (200, {"acknowledged": True}) if made else (400, exists)
            case "PUT", "/orders/_settings":
                if index.keeps_settings:
                    return 403, {"error": {"type": "security_exception", "reason": "no permissions"}}
                index.settings |= {name.removeprefix("index."): text for name, text in json.loads(body).items()}
                return 200, {"acknowledged": True}
            case "GET", "/orders?filter_path" if self.path.endswith("=*.settings.index.gc_deletes"):
                return 200, {"orders": {"settings": {"index": index.settings}}} if index.settings else {}
            case "GET", "/orders?filter_path":
                assert "*.settings.index.uuid,*.settings.index.number_of_shards," in self.path
                found = {"orders": {"settings": {"index": {"uuid": index.uuid, "number_of_shards": "2"}}}}
                found["orders"] |= {"mappings": index.mapping}
                missing = {"error": {"type": "index_not_found_exception", "reason": "no such index [orders]"}}
                return (200, found) if index.uuid else (404, missing)
            case "GET", "/orders/_stats/docs?level":
                if index.histories is None:
                    return 403, {"error": {"type": "security_exception", "reason": "no permissions"}}
                return 200, {"indices": {"orders": {"shards": _shards(index.histories)}}}
            case "GET", "/orders/_count":
                return 200, {"count": len(index.visible)}
            case "POST", "/orders/_bulk":
                assert self.headers["Content-Type"] == "application/x-ndjson"
                return 200, index.bulk(body)
            case "POST", "/orders/_refresh":
                if index.away:
                    index.away -= 1
                    return 200, {"_shards": {"total": 2, "successful": 1, "failed": 1}}
                index.visible = dict(index.documents)
                return 200, {"_shards": {"total": 2, "successful": 1, "failed": 0}}
            case "POST", "/orders/_search?allow_partial_search_results=false":
                if index.away:
                    index.away -= 1
                    return 503, {"error": {"reason": "Partial shards failure"}}
                return 200, index.search(json.loads(body))
            case "POST", "/orders/_search":
                return 200, {"hits": {"hits": []}} if index.away else index.search(json.loads(body))
        raise AssertionError("nothing that an index is asked")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def search_server() -> Iterator[tuple[str, SearchIndex]]:
    """Run a server; yields its url and what it holds. Whatever it was sent that is wrong fails the test at the end."""
    index = SearchIndex()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/orders", index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert index.problems == []


def login(user: str, password: str) -> str:
    """Return what the header says for a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
