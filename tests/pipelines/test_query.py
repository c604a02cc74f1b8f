"""A query is waited for until it ends, or stopped; here it is one that ends at the second look."""

import pytest

from headwater.pipelines.query import until_ended


class Query:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.looks, self.stopped = error, 0, 0

    def awaitTermination(self, seconds: float) -> bool:
        self.looks += 1
        if self.looks > 1 and self.error is not None:
            raise self.error
        return self.looks > 1 or bool(self.stopped)

    def stop(self) -> None:
        self.stopped += 1


def test_a_query_that_ends_by_itself_is_released() -> None:
    query = Query()
    until_ended(query, lambda: False)
    assert (query.looks, query.stopped) == (2, 1)


def test_a_query_is_stopped_when_asked_to() -> None:
    query = Query()
    until_ended(query, lambda: True)
    assert query.stopped == 2


def test_a_query_that_fails_is_released_and_its_error_comes_through() -> None:
    query = Query(OSError("away"))
    with pytest.raises(OSError, match="away"):
        until_ended(query, lambda: False)
    assert query.stopped == 1
