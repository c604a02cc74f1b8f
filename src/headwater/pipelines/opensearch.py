"""OpenSearch, and compatible servers: documents by `_bulk`, with our own versions, and search.

Each item has an external version, so the server itself refuses items older than its own: a batch may come twice, and a
task that was taken for dead may wake up late. The version is (generation, seqno) in one number: a vbucket's generation
grows with each time that it is read anew after a failover, since a new branch writes lower seqnos.

In an index of collections the id of a document begins with that of its collection: `8/key`.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from headwater.client.collections import parse_path
from headwater.errors import ConnectionLost, OptionError, SearchRefused
from headwater.pipelines.fulltext import Hit, check_within, key_text
from headwater.spark.nodes import patiently
from headwater.wire.vbucket import VBUCKETS_MAX

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

BULK_BYTES, BULK_ITEMS = 4 << 20, 1000
# A version has 63 bits: 44 for a seqno, which are 500 years of 1000 changes a second, and 19 for a generation.
SEQNO_BITS = 44
TIMEOUT_SECONDS = SERVER_SECONDS = 60.0
ENCODED = "base64:"
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_OF_THE_INDEX = frozenset({"cluster_block_exception", "index_closed_exception", "index_not_found_exception"})
"""Refusals of an item that say nothing of its document, whatever their status: the index takes none now."""
_OF_THE_MAPPING = re.compile(
    r"mapping set to strict|^pipeline with id \[|^Limit of total fields|"
    r"failed to parse field \[(?:vbucket|seqno|generation|expiry|collection_id)\]"
)
"""Refusals with 400 that any document would get: of fields that all of ours have, or of a pipeline that is gone."""
_STATISTICS = (
    "/_stats/docs?level=shards&filter_path=indices.*.shards.*.routing,indices.*.shards.*.commit.user_data.history_uuid"
)
_NDJSON = "application/x-ndjson"
_MAPPINGS: dict[str, dict[str, Any]] = {
    "key": {"type": "keyword", "ignore_above": 1024},
    "vbucket": {"type": "integer"},
    "seqno": {"type": "long"},
    "generation": {"type": "long"},
    "expiry": {"type": "long"},
    "name": {"type": "text"},
    "body": {"type": "text"},
}
# Words as `fulltext` has them: neither case nor accents matter. Documents of any size may be shown in a search; left
# alone, a server refuses the whole search when it meets one of more than a million characters.
_KEPT_DELETIONS = {"index.gc_deletes": "1h"}
_KEPT_SECONDS = 3600.0
_TIME_UNITS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SETTINGS = {
    **_KEPT_DELETIONS,
    "index.highlight.max_analyzed_offset": 1 << 26,
    "index.analysis.analyzer.default.type": "custom",
    "index.analysis.analyzer.default.tokenizer": "standard",
    "index.analysis.analyzer.default.filter": ["lowercase", "asciifolding"],
}
_OF_COLLECTIONS: dict[str, dict[str, Any]] = {
    "collection_id": {"type": "long"},
    "scope": {"type": "keyword"},
    "collection": {"type": "keyword"},
}
_WHOLE_NUMBERS = frozenset({"short", "integer", "long", "unsigned_long"})


@dataclass(frozen=True)
class SearchServer:
    """The server and name of an index, as tasks need them.

    Args:
        url: `http://host[:port]/index` or `https://`.
        user, password: for HTTP's basic authentication.
        retry_seconds: the time of further attempts at a server that does not answer, or refuses for now.
        by_collection: True for an index of collections.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    retry_seconds: float = SERVER_SECONDS
    by_collection: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
            raise OptionError("opensearch", self.url, "an address with an index, such as http://host:9200/orders")
        if parts.username is not None:
            raise OptionError("opensearch", f"...@{parts.hostname}", "without a name and a password in it")

    @property
    def index(self) -> str:
        """The index's name."""
        return unquote(urlsplit(self.url).path.strip("/"))

    @property
    def peer(self) -> str:
        """The server's host and port."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


@dataclass(frozen=True)
class Item:
    """One document to store, or to delete.

    Attributes:
        document: the fields; None for a deletion.
        collection_id: its collection, in an index of collections; None otherwise.
        replaces_equal: True if it replaces an item of the same version, too, not only older ones.
    """

    key: bytes
    version: int
    document: dict[str, Any] | None
    collection_id: int | None = None
    replaces_equal: bool = False

    @property
    def name(self) -> str:
        """The document's id in the index."""
        return identifier(self.key, self.collection_id)

    def before(self) -> Item:
        """Return the deletion of the document's predecessor, under a lower version, so that the server still accepts
        the document itself if it comes again.
        """
        return replace(self, version=self.version - 1, document=None, replaces_equal=True)

    def lines(self) -> bytes:
        """Return the item's lines in the body of a `_bulk`."""
        kind = "external_gte" if self.replaces_equal else "external"
        head = {"_id": self.name, "version": self.version, "version_type": kind}
        if self.document is None:
            return json.dumps({"delete": head}).encode() + b"\n"
        return json.dumps({"index": head}).encode() + b"\n" + json.dumps(self.document).encode() + b"\n"


@dataclass
class BulkCounts:
    """The counts of a server's answers to items.

    Attributes:
        refused: the reason for each id that the server will never accept.
    """

    stored: int = 0
    deleted: int = 0
    behind: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def version(generation: int, seqno: int) -> int:
    """Return the external version of a change."""
    return generation << SEQNO_BITS | seqno


def identifier(key: bytes, collection_id: int | None = None) -> str:
    """Return the id of a document in the index: its key, encoded if it is not UTF-8; after the collection's id in an
    index of collections.
    """
    before = "" if collection_id is None else f"{collection_id:x}/"
    try:
        plain = key.decode()
    except UnicodeDecodeError:
        return before + ENCODED + base64.b64encode(key).decode()
    return before + (plain if not plain.startswith(ENCODED) else ENCODED + base64.b64encode(key).decode())


def key_of(text: str) -> bytes:
    """Return the key in an id, without the collection's."""
    return base64.b64decode(text.removeprefix(ENCODED)) if text.startswith(ENCODED) else text.encode()


def place_of(text: str, *, by_collection: bool) -> tuple[bytes, int | None]:
    """Return the key in an id, and the collection's id in an index of collections."""
    if not by_collection:
        return key_of(text), None
    number, _, key_text = text.partition("/")
    return key_of(key_text), int(number, 16)


class SearchClient:
    """A client of a server, by the library opensearch-py; for one thread."""

    def __init__(self, server: SearchServer) -> None:
        self.server = server
        self._refused_by = ""
        self._library: OpenSearch | None = None

    def close(self) -> None:
        """Close its connections."""
        library, self._library = self._library, None
        if library is not None:
            library.close()

    def prepare(self, batches: int = 0, *, is_begun: bool = False) -> str:
        """Create the index if there is none; return the id that its server gave it.

        Args:
            batches: the number of batches that it should have. With any, a missing index is not created: these batches
                would be missing for good.
            is_begun: True if a batch was begun, of which the index may have a part. Otherwise it has to be empty:
                documents that the bucket lacks, or with a higher generation, would stay.

        Raises:
            SearchRefused, ConnectionLost: the server refuses, the index is gone or is not ours, or no server answers.
        """
        if batches:
            return self.check(None)
        if self._identity() is None:
            self._make()
        identity = self._identity()
        if not is_begun and (count := self._count()):
            problem = f"index {self.server.index} has {count} documents, of which this folder knows nothing"
            raise SearchRefused(
                self.server.peer, f"{problem}: remove it, or choose another; or give the folder it is of"
            )
        if identity is None:
            raise ConnectionLost(self.server.peer, f"index {self.server.index} was removed just now")
        return identity

    def keep_deletions(self) -> None:
        """Set the index to remember deletions for an hour, if its setting is lower: the default is 60 s.

        Otherwise a late document of an earlier attempt would bring a deleted document back.

        Raises:
            SearchRefused: the login may not change the setting. ConnectionLost: no server answers.
        """
        name = self.server.index
        setting = self._answer("GET", "?filter_path=*.settings.index.gc_deletes")
        retention = str(setting.get(name, {}).get("settings", {}).get("index", {}).get("gc_deletes", "60s"))
        if _seconds(retention) >= _KEPT_SECONDS:
            return
        status, answer = self._patiently("PUT", "/_settings", _KEPT_DELETIONS)
        if status >= 300:
            problem = (
                f"index {name} forgets deletions after {retention}, and a document that is sent late would come back"
            )
            advice = "set its index.gc_deletes to 1h, or let this login set it"
            raise SearchRefused(self.server.peer, f"{problem}: {advice} ({status}: {_reason(answer) or 'refused'})")

    def check(self, recorded: str | None) -> str:
        """Check that the index is the one with this id, and return the id; accept any index if `recorded` is empty.

        The id is the one that the server gave the index, with the histories of its shards as far as the login may see
        them. A server creates a missing index with the first document: an index that was removed while a batch was
        sent, or created again by hand, would lack all earlier batches.

        Raises:
            SearchRefused, ConnectionLost: as `prepare`.
        """
        identity, name = self._identity(), self.server.index
        if identity is not None and (recorded is None or _are_same(recorded, identity)):
            return max(recorded or "", identity, key=len)  # with the histories, if they were ever told
        problem = f"index {name} is gone" if identity is None else f"another index is called {name} by now"
        if identity is not None and recorded is not None and _uuid(identity) == _uuid(recorded):
            problem = f"index {name} was put back to an older state, from a snapshot or a stale copy of a shard"
        advice = (
            f"look at the address, or {'' if identity is None else 'remove it and '}index anew from an empty folder"
        )
        raise SearchRefused(self.server.peer, f"{problem}, and the batches that were in it are not: {advice}")

    def _identity(self) -> str | None:
        looked_at = [
            "settings.index.uuid",
            "settings.index.number_of_shards",
            "mappings.dynamic",
            *(f"mappings.properties.{field}" for field in self._fields),
        ]
        status, answer = self._patiently("GET", f"?filter_path={','.join(f'*.{field}' for field in looked_at)}")
        if status == 404:
            return None
        if status >= 300:
            raise self._refusal(status, answer)
        if list(answer) != [self.server.index]:
            problem = f"{self.server.index} is no index but a name for {', '.join(sorted(answer)) or 'none'}"
            raise SearchRefused(self.server.peer, f"{problem}: give the index itself, for its documents have versions")
        index = answer[self.server.index]
        self._check_mapping(index.get("mappings", {}))
        settings = index["settings"]["index"]
        return " ".join([settings["uuid"], *self._histories(int(settings["number_of_shards"]))])

    def _histories(self, count: int) -> list[str]:
        """Return the server's ids for the history of each of `count` shards; none if the login has no right
        to them.

        A shard keeps this id through restarts and moves. It gets another one when it is restored from a snapshot, also
        into an index that was closed and keeps its id, and when it begins from a copy that lacks changes.
        """

        def ask() -> list[str]:
            status, answer = self._patiently("GET", _STATISTICS)
            if status == 403:
                return []
            if status >= 300:
                raise self._refusal(status, answer)
            shards = answer.get("indices", {}).get(self.server.index, {}).get("shards", {})
            histories = {
                int(number): _history(copy) for number, copies in shards.items() for copy in filter(_leads, copies)
            }
            # A shard without a primary shows no history now. Compared without it, one that was put back would pass for
            # the same.
            if len(histories) < count:
                away = count - len(histories)
                raise ConnectionLost(self.server.peer, f"{away} shards of index {self.server.index} are away")
            return [histories[number] for number in sorted(histories)]

        return patiently(ask, self.server.retry_seconds)

    @property
    def _fields(self) -> dict[str, dict[str, Any]]:
        """The fields of each document, with their mappings."""
        return _MAPPINGS | (_OF_COLLECTIONS if self.server.by_collection else {})

    def _check_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Check that searches by each of our fields find documents.

        Rollbacks and dropped collections are removed by such searches, and a document that they miss would stay for
        good.

        Raises:
            SearchRefused: a field is missing, not indexed, or of another type.
        """
        dynamic, properties = str(mapping.get("dynamic", True)).lower(), mapping.get("properties", {})
        for name, own_type in self._fields.items():
            field = properties.get(name, own_type if dynamic == "true" else None)
            if field is None:
                problem = f"has no field {name} in its mapping, and adds none (dynamic: {dynamic})"
            elif field.get("index") is False:
                problem = f"is not searched by its field {name} (index: false)"
            elif own_type["type"] in _WHOLE_NUMBERS and field.get("type") not in _WHOLE_NUMBERS:
                problem = f"has {field.get('type', 'object')} as its field {name}, which is {own_type['type']}"
            else:
                continue
            advice = f'remove it, make it anew with "{name}": {json.dumps(own_type)}, and index from an empty folder'
            raise SearchRefused(self.server.peer, f"index {self.server.index} {problem}: {advice}")

    def _make(self) -> None:
        body = {"settings": _SETTINGS, "mappings": {"properties": self._fields}}
        status, answer = self._patiently("PUT", "", body)
        if status >= 300 and _kind(answer) != "resource_already_exists_exception":
            raise self._refusal(status, answer)

    def _count(self) -> int:
        self._refresh()
        return int(self._answer("GET", "/_count")["count"])

    def _refresh(self) -> None:
        """Make all stored documents visible to searches."""

        def ask() -> None:
            answer = self._answer("POST", "/_refresh")
            if failed_shards := int((answer.get("_shards") or {}).get("failed", 0)):
                raise ConnectionLost(self.server.peer, f"{failed_shards} shards of index {self.server.index} are away")

        patiently(ask, self.server.retry_seconds)

    def bulk(self, items: Iterable[Item]) -> BulkCounts:
        """Send items, in order; for `retry_seconds`, send those again that the server can't take at the moment.

        Raises:
            ConnectionLost: no server accepted them in that time. SearchRefused: the server refuses all of them, or the
                index accepted none in that time (blocked, closed, removed, or a lost right).
        """
        counts = BulkCounts()
        for chunk in _chunks(items):
            self._settle(chunk, counts)
        return counts

    def remove_older(self, vbucket: int, generation: int) -> int:
        """Delete a vbucket's documents of older generations; return their number."""
        older = {"range": {"generation": {"lt": generation}}}
        return self._remove([{"term": {"vbucket": vbucket}}, older], version(generation, 0))

    def remove_collection(self, collection_id: int) -> int:
        """Delete the documents of a dropped collection; return their number."""
        return self._remove([{"term": {"collection_id": collection_id}}])

    def _remove(self, filters: list[dict[str, Any]], version_min: int = 0) -> int:
        """Delete the documents that a filter finds, until it finds none; return their number.

        Deletions that the server refuses as older prove nothing: after a lost answer these are the ones that were done.

        Args:
            version_min: the lowest version of the deletions.
        """
        query = {"size": BULK_ITEMS, "query": {"bool": {"filter": filters}}, "version": True, "_source": False}
        removed_count = 0
        while True:
            self._refresh()
            hits = self._hits(query)
            if not hits:
                return removed_count
            removed_count += self.bulk(self._deletion(hit, version_min) for hit in hits).deleted

    def _deletion(self, hit: dict[str, Any], version_min: int) -> Item:
        key, collection = place_of(hit["_id"], by_collection=self.server.by_collection)
        # Just above the version that was found: a document that was stored since has a higher one, and stays.
        return Item(key, max(version_min, hit["_version"] + 1), None, collection)

    def search(
        self, words: str, *, limit: int, any_of: bool, collections: Sequence[str] = (), scope: str | None = None
    ) -> list[Hit]:
        """Find documents; arguments as of `fulltext.search`."""
        check_within(self.server.by_collection, collections, scope)
        text = {"query": words, "fields": ["name^2", "body"], "default_operator": "or" if any_of else "and"}
        alive = {"bool": {"should": [{"term": {"expiry": 0}}, {"range": {"expiry": {"gt": int(time.time())}}}]}}
        marks = {"pre_tags": ["["], "post_tags": ["]"], "fields": {"body": {"number_of_fragments": 1}, "name": {}}}
        query = {
            "size": limit,
            "query": {
                "bool": {
                    "must": [{"simple_query_string": text}],
                    "filter": [alive, *_collection_filters(collections, scope)],
                }
            },
            "highlight": marks,
            "_source": ["scope", "collection"] if self.server.by_collection else False,
        }
        return [_read_hit(hit, by_collection=self.server.by_collection) for hit in self._hits(query)]

    def reach(self) -> dict[int, tuple[int, int]]:
        """Return the highest generation and the highest seqno of the index's documents, by vbucket."""
        buckets = self._by_vbucket({name: {"max": {"field": name}} for name in ("generation", "seqno")})
        return {int(bucket["key"]): (_number(bucket["generation"]), _number(bucket["seqno"])) for bucket in buckets}

    def oldest(self) -> dict[int, int]:
        """Return the lowest generation of the index's documents, by vbucket."""
        buckets = self._by_vbucket({"generation": {"min": {"field": "generation"}}})
        return {int(bucket["key"]): _number(bucket["generation"]) for bucket in buckets}

    def _by_vbucket(self, aggregations: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._refresh()
        by_vbucket = {"terms": {"field": "vbucket", "size": VBUCKETS_MAX}, "aggs": aggregations}
        answer = self._search_all_shards({"size": 0, "aggs": {"vbuckets": by_vbucket}})
        return list(answer["aggregations"]["vbuckets"]["buckets"])

    def _hits(self, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self._search_all_shards(query)["hits"]["hits"])

    def _search_all_shards(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a query from all shards; a partial answer would look like a whole one.

        Raises:
            ConnectionLost: a shard did not answer in time.
        """
        answer = self._answer("POST", "/_search?allow_partial_search_results=false", query)
        if answer.get("timed_out"):
            raise ConnectionLost(self.server.peer, "the search took too long there, and found only a part")
        return answer

    # --- one request --------------------------------------------------------------------------------------------------

    def _settle(self, items: Sequence[Item], counts: BulkCounts) -> None:
        deadline, pause = time.monotonic() + self.server.retry_seconds, 0.1
        pending_items = list(items)
        while pending_items:
            self._refused_by = ""
            retries = self._send_once(pending_items, counts)
            if retries and self._refused_by and time.monotonic() + pause > deadline:
                raise SearchRefused(self.server.peer, f"{len(retries)} documents are refused: {self._refused_by}")
            if retries and time.monotonic() + pause > deadline:
                raise ConnectionLost(
                    self.server.peer, f"{len(retries)} documents are refused again and again: too busy"
                )
            if retries:
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
            pending_items = retries

    def _send_once(self, items: list[Item], counts: BulkCounts) -> list[Item]:
        """Send items; return those to be sent again."""
        status, response = self._patiently("POST", "/_bulk", b"".join(item.lines() for item in items))
        # The body is too large for the server, not yet any one document: halves find out which is.
        if status == 413 and len(items) > 1:
            middle = len(items) // 2
            return self._send_once(items[:middle], counts) + self._send_once(items[middle:], counts)
        if status == 413 and items[0].document is not None:
            counts.refused[items[0].name] = "413: the server takes no document as large as this"
            return []
        if status >= 300 or len(response.get("items", ())) != len(items):
            raise self._refusal(status, response)
        return [
            item
            for item, answer in zip(items, response["items"], strict=True)
            if not self._count_result(item, answer, counts)
        ]

    def _count_result(self, item: Item, answer: dict[str, Any], counts: BulkCounts) -> bool:
        """Count the result of an item; return False if it is to be sent again.

        Only 400 and 413 refuse a document for good; nothing refuses a deletion for good. Any other refusal concerns the
        server, the index or the login: after an hour without a right the index must not lack an hour's deletions, nor
        all documents after a wrong mapping.
        """
        result: dict[str, Any] = next(iter(answer.values()), {})
        status, kind = int(result.get("status", 500)), _kind(result)
        if status in _PASSING:
            return False
        # 404 for a deletion means that the document is gone already.
        if status < 300 or (status == 404 and item.document is None and kind not in _OF_THE_INDEX):
            counts.stored += item.document is not None
            counts.deleted += item.document is None
        # The index has this version or a newer one, which is as good.
        elif status == 409:
            counts.behind += 1
        elif item.document is not None and _is_for_good(status, result):
            counts.refused[item.name] = f"{status}: {_reason(result) or 'refused'}"
        else:
            self._refused_by = f"{status}: {_reason(result) or 'refused'}"
            return False
        return True

    def _answer(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        status, answer = self._patiently(method, path, body)
        if status >= 300:
            raise self._refusal(status, answer)
        return answer

    def _patiently(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        data, kind = (body, _NDJSON) if isinstance(body, bytes) else (_json(body), "application/json")
        return patiently(lambda: self._request(method, path, data, kind), self.server.retry_seconds)

    def _request(self, method: str, path: str, data: bytes, kind: str) -> tuple[int, dict[str, Any]]:
        """Send one request; return the status, and the answer as JSON types.

        Raises:
            ConnectionLost: a failure that may pass. SearchRefused: the answer is no JSON.
        """
        from opensearchpy.exceptions import SerializationError, TransportError

        self._library = self._library or _new_client(self.server)
        place, headers = f"/{quote(self.server.index)}{path}", {"content-type": kind}
        try:
            response = self._library.transport.perform_request(method, place, body=data or None, headers=headers)
        except SerializationError as error:
            raise SearchRefused(self.server.peer, f"it answers no JSON: {error}") from None
        except TransportError as error:
            return self._refusal_of(error.status_code, error.info or error.error)
        return (404 if response is False else 200), response if isinstance(response, dict) else {}

    def _refusal_of(self, status: int | str, info: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refusal.

        Raises:
            ConnectionLost: no server answered, or the status is one that passes.
        """
        if not isinstance(status, int):
            raise ConnectionLost(self.server.peer, str(info))
        if status in _PASSING:
            raise ConnectionLost(self.server.peer, f"it answers {status}: {str(info)[:200]}")
        # What stands before a server, such as a proxy that takes no body as large, answers in words of its own.
        return status, info if isinstance(info, dict) else {"error": {"reason": str(info)[:200]}}

    def _refusal(self, status: int, answer: dict[str, Any]) -> SearchRefused:
        return SearchRefused(self.server.peer, f"it answers {status}: {_reason(answer) or 'not what was asked for'}")


def _new_client(server: SearchServer) -> OpenSearch:
    """Return the library's client, without its own retries: these end after a number of attempts, ours after a time."""
    from opensearchpy import OpenSearch

    parts = urlsplit(server.url)
    secure = parts.scheme == "https"
    return OpenSearch(
        [{"host": parts.hostname, "port": parts.port or (443 if secure else 80), "use_ssl": secure}],
        http_auth=None if server.user is None else (server.user, server.password or ""),
        verify_certs=True,
        timeout=TIMEOUT_SECONDS,
        max_retries=0,
    )


def _are_same(recorded: str, actual: str) -> bool:
    """Return True if two ids are of one index with one history; a shard's history that only one id has is not
    compared.
    """
    return recorded == actual or (_uuid(recorded) == _uuid(actual) and " " not in min(recorded, actual, key=len))


def _uuid(index: str) -> str:
    return index.partition(" ")[0]


def _leads(copy: dict[str, Any]) -> bool:
    """Return True if a copy of a shard is the primary."""
    return bool(copy["routing"]["primary"]) and copy["routing"]["state"] in ("STARTED", "RELOCATING")


def _history(copy: dict[str, Any]) -> str:
    return str(copy.get("commit", {}).get("user_data", {}).get("history_uuid", "-"))


def _reason(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    if not isinstance(error, dict):
        return str(error or "")
    causes = error.get("root_cause") or [{}]  # "all shards failed" tells nobody why
    return str(causes[0].get("reason") or error.get("reason", error.get("type", "")))


def _kind(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("type", "")) if isinstance(error, dict) else ""


def _is_for_good(status: int, answer: dict[str, Any]) -> bool:
    """Return True if an item is refused because of its document's content."""
    return status in (400, 413) and _kind(answer) not in _OF_THE_INDEX and not _OF_THE_MAPPING.search(_reason(answer))


def _json(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def _seconds(text: str) -> float:
    """Return a time setting in seconds; 0 for one that is not understood."""
    match = re.fullmatch(r"(\d+)([a-z]+)", text)
    return int(match[1]) * _TIME_UNITS.get(match[2], 0.0) if match else 0.0


def _number(aggregation: Mapping[str, Any]) -> int:
    """Return the value of an aggregation, which is a float; 0 if no document had one."""
    return int(aggregation["value"] or 0)


def _collection_filters(collections: Sequence[str], scope: str | None) -> list[dict[str, Any]]:
    """Return the filters for some collections."""
    if scope is not None:
        return [{"term": {"scope": scope}}]
    pairs = [parse_path(path) for path in collections]
    either = [
        {"bool": {"filter": [{"term": {"scope": scope_name}}, {"term": {"collection": name}}]}}
        for scope_name, name in pairs
    ]
    return [{"bool": {"should": either}}] if either else []


def _read_hit(hit: dict[str, Any], *, by_collection: bool) -> Hit:
    (key, _), marked = place_of(hit["_id"], by_collection=by_collection), hit.get("highlight", {})
    snippet = next((lines[0] for lines in (marked.get("body"), marked.get("name")) if lines), key_text(key))
    source = hit.get("_source") or {}
    return Hit(key, float(hit.get("_score") or 0.0), snippet, source.get("scope"), source.get("collection"))


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for item in items:
        body = 0 if item.document is None else len(item.document["body"])
        if chunk and (len(chunk) >= BULK_ITEMS or size + body > BULK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += body
    if chunk:
        yield chunk
