"""Faults of an object store: a list of rules in a file, which the server of the tests looks at with each request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIDDLEWARE = '''
import json, os, re, threading, time
RULES = os.environ.get("S3_FAULTS", "")
LOCK, SEEN = threading.Lock(), {}
class Faulty:
    """Answers some requests with an error, late, or by cutting the connection."""
    def __init__(self, app):
        self.app = app
    def __call__(self, environ, start_response):
        rule = self.rule(environ["REQUEST_METHOD"], environ["PATH_INFO"]) if RULES else None
        if rule is None:
            return self.app(environ, start_response)
        time.sleep(rule.get("seconds", 0))
        if "status" not in rule:
            return self.app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = ("<Error><Code>%s</Code><Message>a fault</Message></Error>" % rule["code"]).encode()
        head = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start_response(rule["status"], head)
        return [body]
    def rule(self, method, path):
        with LOCK, open(RULES) as file:
            for number, rule in enumerate(json.load(file)):
                key = (number, json.dumps(rule))
                if method == rule["method"] and re.search(rule["path"], path):
                    SEEN[key] = SEEN.get(key, 0) + 1
                    if rule["from"] <= SEEN[key] < rule["from"] + rule["times"]:
                        return rule
'''
"""WSGI: wraps an application in the process of the server."""

REFUSED = {"status": "403 Forbidden", "code": "AccessDenied"}
SLOW_DOWN = {"status": "503 Slow Down", "code": "SlowDown"}


@contextmanager
def faults(rules: Path, *wanted: dict[str, Any]) -> Iterator[None]:
    """Let requests fail for the length of a block; `rules` is the file that the server was started with."""
    rules.write_text(json.dumps(wanted))
    try:
        yield
    finally:
        rules.write_text("[]")


def on(method: str, path: str, *, first: int = 1, times: int = 10**6, **what: Any) -> dict[str, Any]:
    """Return a rule: from the `first` request of a method whose path matches on, so many meet `what`."""
    return {"method": method, "path": path, "from": first, "times": times, **what}
