import pytest

from headwater.errors import OptionError
from headwater.lake.objects import ObjectStore
from headwater.lake.places import is_url, place_of, store_of
from headwater.lake.store import TableStore


def test_the_name_of_a_place_tells_its_store() -> None:
    assert [is_url(place) for place in ("s3://b/x", "gs://b/x", "/a", "file:///a", "a/b")] == [True, True, *[False] * 3]
    assert place_of("s3://b/x/") == "s3://b/x"
    assert isinstance(store_of("s3a://b/x"), ObjectStore)
    assert type(store_of("/tmp/x")) is TableStore


@pytest.mark.parametrize("place", ["hdfs:///lake/t", "abfss://c@a.dfs.core.windows.net/t", "s3:///t"])
def test_a_scheme_that_is_not_known_to_keep_commits_apart_is_refused(place: str) -> None:
    with pytest.raises(OptionError, match="s3://BUCKET/PATH or gs://BUCKET/PATH"):
        store_of(place)
