"""A small REST catalog: what Iceberg's OpenAPI asks of a server, as far as a mirror goes.

Requirements and updates are checked and applied by pyiceberg's own code, and metadata is written by the server.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import update_table_metadata
from pyiceberg.typedef import IcebergBaseModel


class RestCatalogServer(ThreadingHTTPServer):
    """The server and its tables.

    Attributes:
        tables: location of the newest metadata file, by name; in a namespace of a namespace, by the whole name.
        namespaces: all that there are.
        is_away: True to answer 503.
        refuses: the number of requests to which it is answered before the server is back.
        fails: the status of the answer to each request for a table, by its name in `tables`.
        loses: the number of answers that are lost, of commits that are done.
        commits: the updates of each commit, by their actions.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tables: dict[str, str] = {}
        self.namespaces: set[str] = set()
        self.is_away = False
        self.refuses = 0
        self.fails: dict[str, int] = {}
        self.loses = 0
        self.commits: list[list[str]] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metadata(self, name: str) -> TableMetadata:
        """Return a table's newest metadata."""
        return TableMetadataUtil.parse_raw(_path(self.tables[name]).read_text())

    def commit(self, name: str, asked: CommitTableRequest) -> None:
        """Check the requirements of a commit, apply its updates, and write the metadata file."""
        before = self.metadata(name)
        for requirement in asked.requirements:
            requirement.validate(before)
        after = update_table_metadata(before, asked.updates, metadata_location=self.tables[name])
        self.commits.append([update.action for update in asked.updates])
        place = f"{after.location}/metadata/{len(self.commits):05}-{uuid.uuid4()}.metadata.json"
        _path(place).write_text(IcebergBaseModel.model_dump_json(after))
        self.tables[name] = place


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _named(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if "." in namespace else name


class _Handler(BaseHTTPRequestHandler):
    server: RestCatalogServer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer_to("GET")

    def do_HEAD(self) -> None:
        self._answer_to("HEAD")

    def do_POST(self) -> None:
        self._answer_to("POST")

    def do_DELETE(self) -> None:
        self._answer_to("DELETE")

    def _answer_to(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = json.loads(body) if body else {}
        words = unquote(self.path.partition("?")[0]).replace("\x1f", ".").strip("/").split("/")[1:]
        if self.server.is_away or self.server.refuses:
            self.server.refuses = max(0, self.server.refuses - 1)
            self._answer(503, {"error": {"message": "closed", "type": "Unavailable", "code": 503}})
            return
        named = _named(words[1], asked.get("name", words[-1])) if len(words) > 2 else ""
        if (status := self.server.fails.get(named, 0)) != 0:
            self._answer(status, {"error": {"message": "closed", "type": "Unavailable", "code": status}})
            return
        try:
            status, answer = self._done(method, words, asked, body)
        except KeyError:
            status, answer = 404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
        except CommitFailedException as error:
            status, answer = 409, {"error": {"message": str(error), "type": "CommitFailedException", "code": 409}}
        if answer is not None:
            self._answer(status, answer)

    def _done(  # noqa: PLR0911 -- a return for each kind of request
        self, method: str, words: list[str], asked: Any, body: bytes
    ) -> tuple[int, Any]:
        server = self.server
        match method, words:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                server.namespaces.add(".".join(asked["namespace"]))
                return 200, asked | {"properties": {}}
            case (("GET" | "HEAD"), ["namespaces", name]):
                if name not in server.namespaces:
                    raise KeyError(name)
                return 200, {"namespace": name.split("."), "properties": {}}
            case "POST", ["namespaces", namespace, "register"]:
                named = _named(namespace, asked["name"])
                if named in server.tables:
                    return 409, {"error": {"message": "exists", "type": "AlreadyExistsException", "code": 409}}
                server.tables[named] = asked["metadata-location"]
                return 200, self._table(named)
            case "GET", ["namespaces", namespace, "tables", name]:
                return 200, self._table(_named(namespace, name))
            case "DELETE", ["namespaces", namespace, "tables", name]:
                del server.tables[_named(namespace, name)]
                return 200, {}
            case "POST", ["namespaces", namespace, "tables", name]:
                server.commit(_named(namespace, name), CommitTableRequest.model_validate_json(body))
                if server.loses:
                    server.loses -= 1
                    self.close_connection = True
                    return 0, None
                return 200, self._table(_named(namespace, name))
        raise AssertionError((method, words))

    def _table(self, name: str) -> dict[str, Any]:
        place = self.server.tables[name]
        return {"metadata-location": place, "metadata": json.loads(_path(place).read_text()), "config": {}}

    def _answer(self, status: int, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def rest_server() -> Iterator[RestCatalogServer]:
    """A REST catalog for the length of the block."""
    with RestCatalogServer() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
