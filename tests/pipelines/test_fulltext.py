"""Searching in an index file, with rows put in by hand."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import LedgerError, OptionError
from headwater.pipelines import fulltext
from headwater.pipelines.fulltext import (
    STAGED,
    FullText,
    KeptAside,
    apply,
    expression,
    kept_aside,
    replace_vbuckets,
    search,
)
from headwater.pipelines.table import BEGINNING


def row(key: str, text: str | None, vb: int = 0, expiry: int = 0, aside: str | None = None) -> dict[str, Any]:
    told = {"key": key.encode(), "vbucket": vb, "seqno": 1, "expiry": expiry, "text": text, "aside": aside}
    return told | {"deleted": text is None and aside is None}


def put(index: FullText, *rows: dict[str, Any], replaced: tuple[int, ...] = ()) -> None:
    with index.ledger.advance(index.ledger.record.digest, BEGINNING) as database:
        replace_vbuckets(database, replaced)
        apply(database, pa.RecordBatch.from_pylist(list(rows), STAGED))
        database.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def made(place: Path, tokenizer: str = "words") -> FullText:
    return FullText(place, "b", {"tokenizer": tokenizer}, BEGINNING)


def found(place: Path, words: str, **more: Any) -> list[str]:
    return [hit.key.decode() for hit in search(place, words, **more)]


def test_documents_are_found_by_words_phrases_beginnings_and_keys_the_best_first(tmp_path: Path) -> None:
    put(
        made(tmp_path),
        row("a", "red wine from Bordeaux"),
        row("b", "wine, red as the sea; red, red wine"),
        row("wine:c", "Rotwein"),
    )
    assert sorted(found(tmp_path, "red wine")) == ["a", "b"]
    assert found(tmp_path, '"red as"') == found(tmp_path, "SEA") == ["b"]
    assert found(tmp_path, "bord*") == ["a"] and found(tmp_path, "bord") == []
    assert sorted(found(tmp_path, "bordeaux rotwein", any_of=True)) == ["a", "wine:c"]
    assert sorted(found(tmp_path, "wine")) == ["a", "b", "wine:c"] and len(found(tmp_path, "wine", limit=2)) == 2
    (hit,) = search(tmp_path, "bordeaux")
    assert (hit.snippet, hit.score > 0) == ("red wine from [Bordeaux]", True)


def test_what_is_put_in_again_deleted_or_replaced_is_found_as_it_is_now(tmp_path: Path) -> None:
    index = made(tmp_path)
    put(index, row("a", "one"), row("b", "one", vb=1), row("c", "one"))
    put(index, row("a", "two"), row("c", None))
    assert (found(tmp_path, "one"), found(tmp_path, "two")) == (["b"], ["a"])
    put(index, row("d", "one", vb=1), replaced=(1,))
    assert found(tmp_path, "one") == ["d"]


def test_documents_kept_aside_are_listed_and_not_found_until_they_are_right(tmp_path: Path) -> None:
    index = made(tmp_path)
    put(index, row("a", "one"), row("b", "one"))
    put(index, row("a", None, aside="not JSON: x"))
    assert (found(tmp_path, "one"), kept_aside(tmp_path)) == (["b"], [KeptAside(b"a", "not JSON: x")])
    put(index, row("a", "one"))
    assert (sorted(found(tmp_path, "one")), kept_aside(tmp_path)) == (["a", "b"], [])


def test_a_document_whose_time_is_up_is_not_found_though_its_node_has_not_told_yet(tmp_path: Path) -> None:
    put(made(tmp_path), row("a", "one", expiry=int(time.time()) - 5), row("b", "one", expiry=int(time.time()) + 3600))
    assert found(tmp_path, "one") == ["b"]


@pytest.mark.parametrize(
    ("tokenizer", "words", "hits"), [("english", "walk", 1), ("parts", "alkin", 1), ("words", "walk", 0)]
)
def test_tokenizers_find_word_stems_and_parts_of_words(tokenizer: str, words: str, hits: int, tmp_path: Path) -> None:
    put(made(tmp_path, tokenizer), row("a", "walking"))
    assert len(found(tmp_path, words)) == hits


@pytest.mark.parametrize("words", ['a" OR "b', "NEAR(a b)", "name:a", "a AND", "(", "-a", '"', "^x", "a'b;--", "*"])
def test_nothing_in_the_words_is_an_operator(words: str, tmp_path: Path) -> None:
    put(made(tmp_path), row("k", "something"))
    try:
        assert found(tmp_path, words) == []
    except OptionError as error:
        assert "at least one word" in str(error)


def test_words_are_quoted_one_by_one() -> None:
    assert expression('red "dry wine" bord* - x"y', any_of=False) == '"red" AND "dry wine" AND "bord"* AND "xy"'


def test_a_python_without_full_text_search_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(sqlite3.Connection):
        def execute(self, *asked: Any) -> Any:
            if "fts5" in asked[0]:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(*asked)

    connect = sqlite3.connect
    monkeypatch.setattr(fulltext.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Poor, **k))
    with pytest.raises(LedgerError, match="was built without FTS5"):
        made(tmp_path)
    with pytest.raises(OptionError, match="words, english, parts"):
        made(tmp_path, "letters")
