import re
import sys

import pytest

from headwater.errors import OptionError, TableError
from headwater.lake import objects
from headwater.lake.objects import ObjectStore
from headwater.lake.places import is_url, place_of, store_of
from headwater.lake.store import TableStore


def test_the_name_of_a_place_tells_its_store() -> None:
    assert [is_url(place) for place in ("s3://b/x", "gs://b/x", "/a", "file:///a", "a/b")] == [True, True, *[False] * 3]
    assert place_of("s3://b/x/") == "s3://b/x"
    assert isinstance(store_of("s3a://b/x"), ObjectStore)
    assert type(store_of("/tmp/x")) is TableStore


@pytest.mark.parametrize("place", ["hdfs:///lake/t", "webhdfs://n:9870/t", "s3:///t", "memory://t/t"])
def test_a_scheme_that_is_not_known_to_keep_commits_apart_is_refused(place: str) -> None:
    with pytest.raises(OptionError, match="a folder, or a url of s3:, gs: or abfss:; HDFS and others can be mounted"):
        store_of(place)


@pytest.mark.parametrize(
    ("place", "library"),
    [
        ("s3a://b/t", "s3fs"),
        ("gs://b/t", "gcsfs"),
        ("abfs://c/t", "adlfs"),
        ("abfss://c@a.dfs.core.windows.net/t", "adlfs"),
    ],
)
def test_a_store_whose_library_is_missing_says_which(place: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(objects, "_ways", {})
    with pytest.raises(TableError, match=f"{re.escape(place)}: its store needs {library}: pip install '{library}'"):
        store_of(place)
