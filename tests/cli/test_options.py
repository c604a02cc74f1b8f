"""The options that commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from headwater.cli import options
from headwater.cli.options import check_answers, vbucket_set
from headwater.client import unread
from headwater.errors import AuthError, ConnectionLost, HeadwaterError
from tests.cli.support import Run


def test_a_list_of_vbuckets_may_hold_ranges() -> None:
    assert vbucket_set("0-2,700, 5") == [0, 1, 2, 5, 700]


def test_no_list_means_all() -> None:
    assert vbucket_set(None) is None


@pytest.mark.parametrize(
    "line", [("seqnos", "--vbuckets", "900"), ("failover-log", "16"), ("seqnos", "--vbuckets=3,16")]
)
def test_a_vbucket_that_the_bucket_has_not_is_told_with_those_it_has(run: Run, line: tuple[str, ...]) -> None:
    status, shown, told = run(*line)
    assert (status, shown) == (2, "") and "of this bucket, which has 0 to 15" in told and told.count("\n") == 1


class Away:
    """Nodes that fail so often before they answer."""

    def __init__(self, *failures: HeadwaterError) -> None:
        self.failures, self.asked = list(failures), 0

    @contextmanager
    def connect(self, url: str, user: str | None, password: str | None) -> Iterator[SimpleNamespace]:
        self.asked += 1
        if self.failures:
            raise self.failures.pop()
        yield SimpleNamespace(seqnos=dict, stats=lambda group: {}, choose=lambda collections, scope: None)


def test_the_first_look_at_a_node_that_is_away_is_under_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(ConnectionLost("n", "refused"), ConnectionLost("n", "refused"))
    monkeypatch.setattr(options, "connect", away.connect)
    check_answers("couchbase://n/b", None, None, 600.0)
    assert away.asked == 3


@pytest.mark.parametrize(
    ("failure", "retry"),
    [(ConnectionLost("n", "refused"), None), (AuthError("wrong password"), 600.0)],
)
def test_without_retry_or_for_a_wrong_password_it_is_one_look(
    monkeypatch: pytest.MonkeyPatch, failure: HeadwaterError, retry: float | None
) -> None:
    away = Away(failure)
    monkeypatch.setattr(options, "connect", away.connect)
    with pytest.raises(type(failure)):
        check_answers("couchbase://n/b", None, None, retry)
    assert away.asked == 1


@pytest.mark.parametrize(("collections", "lines"), [(None, 1), ("all", 0)])
def test_collections_that_are_not_read_are_told_and_those_that_are_read_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], collections: str | None, lines: int
) -> None:
    monkeypatch.setattr(options, "connect", Away().connect)
    monkeypatch.setattr(unread, "unread_collections", lambda client: {"shop": 2})
    check_answers("couchbase://n/b", None, None, collections=collections)
    assert capsys.readouterr().err.count("left out: 2 collections of scope shop") == lines
