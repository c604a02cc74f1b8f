"""Read every change up to now, save where we are, and come back later for what is new.

A position is (vb uuid, seqno, snapshot), one for each vbucket: with it, a consumer that returns after days gets every
later change and none twice, or is told to roll back when the node's history has left the one it knew.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from headwater import client, testing


def read_what_is_new(url: str, saved: Path) -> None:
    """Print the changes since the saved positions, then save the new ones."""
    start = client.load_positions(saved.read_text()) if saved.exists() else None
    with client.connect(url) as bucket, bucket.changes(start, until="now") as changes:
        for change in changes:
            match change:
                case client.Mutation(key=key, value=value):
                    print("stored", key.decode(), value.decode())
                case client.Deletion(key=key) | client.Expiration(key=key):
                    print("gone", key.decode())
        saved.write_text(client.save_positions(changes.positions))


with TemporaryDirectory() as folder, testing.node(vbuckets=16) as node:
    saved = Path(folder) / "positions.json"
    with client.connect(node.url) as bucket:
        bucket.set("apple", "green")
        bucket.set("pear", "yellow")
        print("first visit")
        read_what_is_new(node.url, saved)
        bucket.set("apple", "red")
        bucket.delete("pear")
        print("second visit")
        read_what_is_new(node.url, saved)
