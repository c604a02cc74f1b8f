"""An S3 for tests: moto's server in a process of its own, and the environment that leads the libraries to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lake.s3_faults import MIDDLEWARE

BUCKET = "lake"
_SERVE = f"""{MIDDLEWARE}
import sys, threading
from werkzeug.serving import make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
app = Faulty(DomainDispatcherApplication(create_backend_app))
server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
print("port", server.server_port, flush=True)
server.serve_forever()
"""


AUTHORISED = {"INITIAL_NO_AUTH_ACTION_COUNT": "0"}
"""The server's environment to refuse whom it does not know: everybody."""


def make_bucket() -> None:
    """Make the bucket `BUCKET`, in the server that the environment names."""
    import s3fs  # noqa: PLC0415

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)


def options_of(place: object) -> dict[str, str] | None:
    """Return what Polars and delta-rs need to read a place, from the environment; None for a folder."""
    if not str(place).startswith("s3://"):
        return None
    return {name.lower(): os.environ[name] for name in os.environ if name.startswith("AWS_")}


@contextmanager
def s3_server(**settings: str) -> Iterator[dict[str, str]]:
    """Run it; yield what clients need in their environment. It ends with the block, or with this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore"} | settings,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        told = re.match(r"port (\d+)", process.stdout.readline())
        assert told is not None, "the server did not start"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{told[1]}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
