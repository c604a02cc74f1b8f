import pytest

from headwater import errors
from headwater.pipelines.failures import MirrorFailed, passes, passing_failovers, reason

WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "tasks.py", line 1, in run
headwater.errors.{name}: {text}

	at org.apache.spark.api.python.BasePythonRunner
"""


class StreamError(Exception):
    """As Spark's look."""


def test_our_reason_is_found_in_sparks_pages() -> None:
    error = StreamError(WRAPPED.format(name="ConnectionLost", text="127.0.0.1:1: connection refused"))
    assert str(reason(error)) == "127.0.0.1:1: connection refused"
    assert isinstance(reason(error), MirrorFailed)


def test_our_own_errors_stay_as_they_are() -> None:
    error = errors.TableError("/lake/t", "no")
    assert reason(error) is error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(30, "Read-only file system", "/lake/t/x"), "/lake/t/x: Read-only file system"),
        (StreamError("a\nCaused by: java.io.IOException: no route\n"), "no route"),
        (StreamError("one\ntwo"), "one"),
        (StreamError(""), "StreamError"),
    ],
)
def test_of_others_one_line_is_told(error: Exception, told: str) -> None:
    assert str(reason(error)) == told


@pytest.mark.parametrize(
    "name", ["OptionError", "UnsupportedTable", "TableError", "CatalogRefused", "AuthError", "CorruptStore"]
)
def test_what_lasts_is_not_tried_again(name: str) -> None:
    assert not passes(StreamError(WRAPPED.format(name=name, text="x")))
    assert not passes(errors.OptionError("a", "b", "c"))


def test_a_path_that_can_not_be_is_not_tried_again() -> None:
    assert not passes(NotADirectoryError(20, "Not a directory", "/etc/hostname/lake"))
    assert not passes(OSError(36, "File name too long", "x" * 5000))
    assert passes(OSError(28, "No space left on device"))


@pytest.mark.parametrize(
    "name", ["ConnectionLost", "CatalogAway", "DiskFull", "TableChanged", "NotMyVbucket", "TemporaryFailure"]
)
def test_what_may_pass_is_tried_again(name: str) -> None:
    assert passes(StreamError(WRAPPED.format(name=name, text="x")))
    assert passes(OSError(30, "Read-only file system"))
    assert passes(StreamError("Python worker failed to connect back"))
    assert passes(errors.TableChanged("/lake/t", "x"))


@pytest.mark.parametrize("error", [errors.RollbackRequired(2, 9, 4, ""), errors.DataLoss({2: 9}, 4)])
def test_a_failover_or_purge_during_a_second_look_at_the_source_is_tried_again(
    error: errors.RollbackRequired,
) -> None:
    assert not passes(error)
    told = pytest.raises(errors.ConnectionLost, match=r"read a second time: .*vbuckets? 2")
    with told as caught, passing_failovers("couchbase://a"):
        raise error
    assert passes(caught.value)


def test_a_certificate_that_is_refused_is_no_outage() -> None:
    refused = errors.CertificateRefused("127.0.0.1:1", "self-signed", 18)
    assert not passes(refused)
    assert not passes(StreamError(WRAPPED.format(name="CertificateRefused", text="127.0.0.1:1: self-signed")))
    assert passes(errors.ConnectionLost("127.0.0.1:1", "refused"))
