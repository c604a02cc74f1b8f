"""A real OpenSearch from Maven Central, with what it needs and nothing else; where there is no Maven, no server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.nodes import until

HERE = Path(__file__).parent / "opensearch"
FETCH_SECONDS = 600.0


@contextmanager
def opensearch(folder: Path) -> Iterator[str]:
    """Run a server in a folder; yields its url."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("no OpenSearch here: Maven fetches it (apt install maven)")
    fetch = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    fetch.append(f"-DoutputDirectory={folder / 'lib'}")
    fetched = subprocess.run(fetch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if fetched.returncode:
        pytest.skip(f"no OpenSearch here: {fetched.stdout[-500:]}")
    line = ["java", "-Xmx512m", "-cp", f"{folder / 'lib'}/*", str(HERE / "Start.java"), str(folder / "node")]
    log, address = folder / "server.log", folder / "address"
    with log.open("w") as told:
        server = subprocess.Popen([*line, str(address)], cwd=folder, stdout=told, stderr=told)
    try:
        until(lambda: address.exists() or server.poll() is not None, "OpenSearch answers")
        assert address.exists(), log.read_text()[-4000:]
        yield address.read_text()
    finally:
        server.kill()
        server.wait()
