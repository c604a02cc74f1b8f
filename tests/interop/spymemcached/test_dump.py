"""The documents that spymemcached's TapClient reads of a node are those that were stored; see README.md."""

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from headwater import testing

HERE = Path(__file__).parent
HAS_TOOLS = shutil.which("mvn") is not None and shutil.which("java") is not None


def dump(port: int, target: Path) -> list[tuple[str, str, bytes]]:
    """(key, flags, value) of every mutation."""
    build = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-DbuildDirectory={target}", "compile", "exec:java"]
    done = subprocess.run([*build, f"-Dexec.args={port}"], capture_output=True, text=True, timeout=540, check=True)
    rows = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("item ")]
    return [(base64.b64decode(key).decode(), flags, base64.b64decode(value)) for _, _, key, flags, value in rows]


if HAS_TOOLS:

    @pytest.mark.interop
    def test_spymemcached_dumps_a_node_completely(tmp_path: Path) -> None:
        with testing.node(vbuckets=64) as node, node.client() as bucket:
            stored = {f"k{number}": f"v{number}".encode() for number in range(5000)}
            bucket.set_many(stored.items())
            bucket.set("flags", b"x", flags=0x01020304)
            bucket.delete("k7")
            found = dump(node.port, tmp_path / "target")
        del stored["k7"]
        assert len(found) == 5000
        assert {key: value for key, _, value in found} == stored | {"flags": b"x"}
        assert {flags for key, flags, _ in found if key == "flags"} == {str(0x01020304)}
