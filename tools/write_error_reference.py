"""Write docs/reference/errors.md from headwater/errors.py: each error, its meaning, and whether a retry helps.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

import inspect
from pathlib import Path

import headwater.wire.status  # noqa: F401  (it teaches the errors the specification's names)
from headwater import errors

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "errors.md"
HEAD = """# Errors

Written by `make docs` from `src/headwater/errors.py`; edit there. Every error derives from `HeadwaterError`; its fields
are attributes, its text says what happened, with numbers, and what to do next. *Retry* marks those that pass by
themselves.

| error | derives from | meaning |
|---|---|---|
"""
STATUSES = """
## Answers of a server

| status | name | error | meaning | retry |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    classes = [var for var in vars(errors).values() if inspect.isclass(var) and issubclass(var, errors.HeadwaterError)]
    others = [each for each in classes if each.__module__ == errors.__name__ and each not in _answers()]
    return (
        HEAD + "".join(_row(other) for other in others) + STATUSES + "".join(_answer(answer) for answer in _answers())
    )


def _answers() -> list[type[errors.StatusError]]:
    return [errors.StatusError.registered[status] for status in sorted(errors.StatusError.registered)]


def _row(error: type[Exception]) -> str:
    return f"| `{error.__name__}` | `{error.__bases__[0].__name__}` | {_meaning(error)} |\n"


def _answer(error: type[errors.StatusError]) -> str:
    name = errors.StatusError.names.get(error.number, "")
    retry = "yes" if error.retriable else ""
    return f"| 0x{error.number:02x} | {name} | `{error.__name__}` | {_meaning(error)} | {retry} |\n"


def _meaning(error: type[Exception]) -> str:
    return (error.__doc__ or "").partition("\n")[0].replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
