"""The columns of a batch with each change's collection: ids from the wire, and known names.

    collection_id  uint32               0 for the default collection
    scope_id       uint32               null where only the collection's id is known (CollectionName)
    scope          dictionary<string>   null as scope_id
    collection     dictionary<string>   null as scope_id

A batch has few collections and many rows, so names are made once a collection, and rows are looked up all at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.client.collections import CollectionNames
from headwater.kernels.batches import SCHEMA_WITH_IDS

_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA_WITH_NAMES: Final = (
    SCHEMA_WITH_IDS.append(pa.field("scope_id", pa.uint32()))
    .append(pa.field("scope", _NAMES))
    .append(pa.field("collection", _NAMES))
)
"""The columns of a batch of a drain that chose collections."""


def with_names(records: pa.RecordBatch, names: CollectionNames) -> pa.RecordBatch:
    """Return the same rows with the columns `scope_id`, `scope` and `collection` added."""
    ids, indexes = _distinct(records.column("collection_id").to_numpy())
    entries = [names.of(number) for number in ids.tolist()]
    nameless = np.array([entry.collection is None for entry in entries], np.bool_)[indexes]
    scope_ids = np.array([entry.scope_id or 0 for entry in entries], np.uint32)[indexes]
    columns = [
        pa.array(scope_ids, pa.uint32(), mask=nameless),
        _dictionary([entry.scope or "" for entry in entries], indexes, nameless),
        _dictionary([entry.collection or "" for entry in entries], indexes, nameless),
    ]
    return pa.RecordBatch.from_arrays([*records.columns, *columns], schema=SCHEMA_WITH_NAMES)


def _distinct(ids: NDArray[np.uint32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct ids, and for each row the index of its id among them."""
    if not len(ids) or (ids == ids[0]).all():  # as nearly always
        return ids[:1], np.zeros(len(ids), np.int32)
    return np.unique(ids, return_inverse=True)


def _dictionary(words: list[str], indexes: NDArray[Any], nameless: NDArray[np.bool_]) -> pa.Array[Any]:
    distinct = list(dict.fromkeys(words))
    places = np.array([distinct.index(word) for word in words], np.int32)[indexes]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32(), mask=nameless), pa.array(distinct, pa.string()))
