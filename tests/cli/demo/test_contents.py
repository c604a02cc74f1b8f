from pathlib import Path

import deltalake
import pyarrow as pa

from headwater import testing
from headwater.cli.demo import contents


def test_the_node_holds_what_was_stored_and_not_deleted() -> None:
    with testing.node(vbuckets=4) as node, node.client() as client:
        client.set_many({"a": "1", "b": "2", "c": "3"})
        client.set("a", "again")
        client.delete("b")
        assert contents.of_node(client) == {b"a": b"again", b"c": b"3"}


def test_the_table_holds_what_another_implementation_reads_in_it(tmp_path: Path) -> None:
    rows = pa.table({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", b"2"]), "seqno": [1, 2]})
    deltalake.write_deltalake(tmp_path, rows)
    assert contents.of_table(tmp_path) == {b"a": b"1", b"b": b"2"}
