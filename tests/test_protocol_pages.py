"""The reference pages are what the declarations say."""

import re

from headwater.testing.strategies import any_class
from headwater.wire.status import Status
from tests.test_docs import ROOT, load

PAGES = ROOT / "docs" / "protocol"
reference = load(ROOT / "tools" / "protocol_pages.py")


def test_no_page_is_stale():
    assert reference.stale(PAGES) == [], "run: make docs"


def test_no_page_is_left_over():
    assert {path.name for path in PAGES.iterdir()} == set(reference.pages())


def test_every_message_has_its_entry():
    text = "".join(reference.pages().values())
    assert [cls.__name__ for cls in any_class() if f"\n## {cls.__name__}\n" not in text] == []


def test_every_link_to_a_message_leads_to_its_entry():
    pages = reference.pages()
    lost = []
    for name, text in pages.items():
        for page, anchor in re.findall(r"\]\((\w+\.md)?#(\w+)\)", text):
            if f"\n## {anchor}\n" not in pages[page or name].lower():
                lost.append((name, page, anchor))
    assert lost == []


def test_a_request_stands_before_what_it_is_answered_with():
    row = next(line for line in reference.pages()["dcp.md"].splitlines() if line.startswith("| 0x51 "))
    assert row.index("[AddStream]") < row.index("[AddStreamResponse]")


def test_every_message_says_what_it_is_for():
    assert [cls.__name__ for cls in any_class() if "__doc__" not in vars(cls) or not cls.__doc__.strip()] == []
    assert [(cls.__name__, field.name) for cls in any_class() for field in cls.layout.fields if not field.about] == []


def test_every_status_is_listed():
    numbers = reference.pages()["numbers.md"]
    assert all(f"| {status.name} |" in numbers for status in Status)


def test_pages_are_written_where_they_are_missing(tmp_path, capsys):
    assert reference.main(["--check", str(tmp_path)]) == 1
    assert reference.main([str(tmp_path)]) == 0
    assert reference.main(["--check", str(tmp_path)]) == 0
    assert "stale" in capsys.readouterr().out
