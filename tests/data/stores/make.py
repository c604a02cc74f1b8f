"""Make a store with the headwater that is imported, and pack it with what it holds: for the releases to come.

    PYTHONPATH=/path/to/that/release/src python tests/data/stores/make.py tests/data/stores/NAME.tar.gz [--collections]

The archive has the folder `data` and `changes.jsonl`, what `headwater tail --once --json` of that release prints of it.
tests/node/test_upgrade.py opens it with the code of today and compares.
"""

import json
import os
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
