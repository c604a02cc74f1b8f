"""Make a store with the headwater that is imported, and pack it with what it holds: for the releases to come.

    PYTHONPATH=RELEASE/src python tests/data/stores/make.py tests/data/stores/NAME.tar.gz [--collections] [--durable]

The archive has the folder `data` and `changes.jsonl`, what `headwater tail --once --json` of that release prints of it.
tests/node/test_upgrade.py opens it with the code of today and compares.
"""

import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from headwater import testing

OPTIONS = {"vbuckets": 4, "segment_mib": 48}
FOREVER = 2**31 - 1  # a time that does not come while anybody runs this


def fill(node: testing.Node) -> None:
    """Documents of each kind, overwritten, deleted and kept."""
    with node.client() as client:
        for number in range(40):
            client.set(f"k{number}", f"first {number}")
        for number in range(0, 40, 3):
            client.set(f"k{number}", json.dumps({"number": number, "again": True}), flags=number)
        for number in range(0, 40, 8):
            client.delete(f"k{number}")
        client.set("bytes", bytes(range(256)))
        client.set("empty", b"")
        client.set("expires", "late", expiry=FOREVER)
        client.set("flags", "all", flags=0xFFFF_FFFF)
        client.set("schlüssel", "ümläut")
        client.set("large", "text that repeats " * 4000)


def write_durably(port: int) -> None:
    """Two documents and a deletion by durable writes, as an SDK sends them, so that the log has prepares."""
    hello = bytes.fromhex("801f0000000000000000000400000000") + bytes(8) + bytes.fromhex("00100011")
    framing, extras = bytes.fromhex("1101"), bytes(8)  # one object, durability: majority
    writes = [(1, b"durable", b"kept"), (1, b"durable gone", b"1"), (4, b"durable gone", b"")]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire, wire.makefile("rb") as answers:
        wire.sendall(hello)
        answers.read(int.from_bytes(answers.read(24)[8:12]))
        for opcode, key, value in writes:
            extra = extras if value else b""
            body = framing + extra + key + value
            head = bytes([8, opcode, len(framing), len(key), len(extra), 0, 0, 0]) + len(body).to_bytes(4) + bytes(12)
            wire.sendall(head + body)
            answer = answers.read(24)
            assert answer[6:8] == bytes(2), answer.hex()
            answers.read(int.from_bytes(answer[8:12]))


def main() -> None:
    """Make and pack."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        node = testing.Node(folder, dict(OPTIONS))
        node.start()
        fill(node)
        run = [sys.executable, "-m", "headwater"]
        if "--collections" in sys.argv:
            subprocess.run([*run, "collection", "create", "shop.orders", "--node", node.url], check=True)
        if "--durable" in sys.argv:
            write_durably(node.port)
        changes = subprocess.run(
            [*run, "tail", "--once", "--json", "--node", node.url], check=True, capture_output=True, env=os.environ
        ).stdout
        (Path(place) / "changes.jsonl").write_bytes(changes)
        node.stop()
        with tarfile.open(target, "w:gz", compresslevel=9) as packed:
            for name in ("data", "changes.jsonl"):
                packed.add(Path(place) / name, name)
    print(f"{target}: {target.stat().st_size:,} bytes, {len(changes.splitlines())} changes")


if __name__ == "__main__":
    main()
