"""spymemcached reads by TAP what was stored, and stores by text and binary what is streamed then; see README.md."""

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import testing
from tests.interop import observed
from tests.interop.toolchains import JAVA, java_program, needs, pinned

HERE = Path(__file__).parent
VERSION = pinned(HERE, "spymemcached")
pytestmark = [pytest.mark.interop, needs(JAVA)]


def dump(port: int) -> list[tuple[str, str, bytes]]:
    """(key, flags, value) of every mutation."""
    command = ["java", "-cp", java_program(HERE), "headwater.TapDump", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=True)
    rows = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("item ")]
    return [(base64.b64decode(key).decode(), flags, base64.b64decode(value)) for _, _, key, flags, value in rows]


@pytest.mark.battery
@pytest.mark.program("spymemcached TapClient", VERSION, "a dump by TAP")
def test_spymemcached_dumps_a_node_completely(compared: Callable[[int], None]) -> None:
    with testing.node(vbuckets=64) as node, node.client() as bucket:
        stored = {f"k{number}": f"v{number}".encode() for number in range(5000)}
        bucket.set_many(stored.items())
        bucket.set("flags", b"x", flags=0x01020304)
        bucket.delete("k7")
        found = dump(node.port)
    del stored["k7"]
    assert len(found) == 5000
    assert {key: value for key, _, value in found} == stored | {"flags": b"x"}
    assert {flags for key, flags, _ in found if key == "flags"} == {str(0x01020304)}
    compared(len(found))


@pytest.mark.battery
@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(each, marks=pytest.mark.program("spymemcached", VERSION, f"documents, CAS, counters, {how}"))
        for each, how in (("TEXT", "by text"), ("BINARY", "binary"))
    ],
)
def test_spymemcached_stores_and_counts_in_both_protocols(protocol: str, compared: Callable[[int], None]) -> None:
    with testing.node(vbuckets=64) as node:
        command = ["java", "-cp", java_program(HERE), "headwater.Documents", str(node.port), protocol]
        done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found = {key: each.body for (_, key), each in observed.documents(node).items()}
    # By its binary side, which knows no vbuckets, all is in vbucket 0; by key it is the same.
    assert found == {f"k{n}": b"v%d" % n for n in range(1, 1000)} | {"new": b"?y!", "n": b"15"}
    compared(len(found))
