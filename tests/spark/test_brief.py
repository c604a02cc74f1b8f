"""Errors of the source and the writer as Spark hands them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headwater.errors import CorruptStore, HeadwaterError, OptionError, TransportError
from headwater.first_line import first_line
from headwater.spark.brief import brief, brief_rows

LINES_MAX = 8


def deep(error: HeadwaterError) -> Any:
    def deeper() -> None:
        raise error

    deeper()


@brief
def asked(error: HeadwaterError) -> None:
    deep(error)


@brief_rows
def rows(error: HeadwaterError) -> Iterator[int]:
    yield 1
    deep(error)


def calls_of(call: Callable[[], Any], kind: type[HeadwaterError]) -> list[str]:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.__cause__ is None
    return [each.name for each in extract_tb(caught.value.__traceback__)][2:]


def test_an_error_that_says_what_to_do_has_none_of_our_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls_of(lambda: asked(OptionError("a", "b", "c")), OptionError) == ["briefly"]
    assert calls_of(lambda: list(rows(TransportError("away"))), TransportError) == ["briefly"]
    monkeypatch.setenv("HEADWATER_TRACEBACK", "1")
    assert calls_of(lambda: asked(OptionError("a", "b", "c")), OptionError)[-2:] == ["deep", "deeper"]


def test_whoever_asks_for_all_calls_sees_what_the_error_came_from_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError as error:
            raise TransportError("away") from error

    monkeypatch.setenv("HEADWATER_TRACEBACK", "1")
    with pytest.raises(TransportError) as caught:
        brief(refused)()
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_an_error_that_may_be_ours_keeps_them() -> None:
    assert calls_of(lambda: asked(CorruptStore("x", 1, "y")), CorruptStore)[-2:] == ["deep", "deeper"]


@pytest.mark.spark
def test_a_node_that_is_down_takes_a_few_lines_and_one_comes_first(spark: Any, tmp_path: Path) -> None:
    url = "couchbase://127.0.0.1:1/default"
    reader = spark.readStream.format("dcp").option("retrySeconds", "1")
    frame = spark.createDataFrame([("k", "v")], "key string, value string")
    stream = reader.load(url).writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    ways: list[Callable[[], Any]] = [
        lambda: spark.read.format("dcp").option("retrySeconds", "1").load(url).count(),
        lambda: stream.trigger(availableNow=True).start().awaitTermination(),
        lambda: frame.write.format("dcp").mode("append").option("retrySeconds", "1").save(url),
        lambda: spark.read.format("dcp").option("vbucketz", "1").load(url),
    ]
    for way in ways:
        with pytest.raises(PySparkException) as failed:
            way()
        told = str(failed.value).partition("=== Streaming Query")[0].strip().splitlines()
        assert len(told) <= LINES_MAX, told
        line = first_line(failed.value)
        assert line is not None and ("no node listens there: start one" in line or "did you mean vbuckets?" in line)
