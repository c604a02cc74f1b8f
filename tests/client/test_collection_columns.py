"""Columns of names: the name of each row's collection, made once a collection."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.collection_columns import SCHEMA_WITH_NAMES, with_names
from headwater.client.collections import CollectionNames
from headwater.kernels.batches import SCHEMA_WITH_IDS
from headwater.wire.manifest import EMPTY, Collection, CollectionsManifest, Scope

MADE = (
    Scope(8, "shop", (Collection(8, "orders"), Collection(9, "carts"))),
    Scope(9, "sea", (Collection(10, "carts"),)),
)
NAMES = CollectionNames(CollectionsManifest(1, (*EMPTY.scopes, *MADE)))


def batch_of(ids: list[int]) -> pa.RecordBatch:
    empty = [pa.array([b"" if pa.types.is_binary(kind) else 0] * len(ids), kind) for kind in SCHEMA_WITH_IDS.types[:-1]]
    return pa.RecordBatch.from_arrays([*empty, pa.array(ids, pa.uint32())], schema=SCHEMA_WITH_IDS)


@given(st.lists(st.sampled_from([0, 8, 9, 10, 11, 0xFFFF_FFFF])))
def test_each_row_has_the_names_of_its_collection_and_nulls_where_only_the_id_is_known(ids: list[int]) -> None:
    records = with_names(batch_of(ids), NAMES)
    records.validate(full=True)
    assert records.schema == SCHEMA_WITH_NAMES
    told = zip(
        *(records[name].to_pylist() for name in ("collection_id", "scope_id", "scope", "collection")), strict=True
    )
    assert list(told) == [tuple(NAMES.of(number)) for number in ids]


def test_a_name_is_kept_once_however_many_rows_have_it() -> None:
    records = with_names(batch_of([8, 9, 10] * 100), NAMES)
    assert records["scope"].dictionary.to_pylist() == ["shop", "sea"]
    assert records["collection"].dictionary.to_pylist() == ["orders", "carts"]
