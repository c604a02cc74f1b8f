"""One line first: the reason and the next step, above the traceback that Python, IPython and Spark show.

An error of headwater's that nobody caught is shown as pages of calls with the reason at the end; out of Spark come
pages of Python and Java around it. `show` lets each of them begin with the line that the command line would print.
The rest is never away:

| where                      | what is shown                | the rest                       |
|----------------------------|------------------------------|--------------------------------|
| a script, `spark-submit`   | the line, then the traceback | below the line                 |
| a shell of Python, PySpark | the line                     | `traceback.print_last()`       |
| IPython                    | the line                     | `%tb`                          |
| a Jupyter notebook         | the line                     | folded below the line, and `%tb` |

Errors of others are shown as before. Nothing here imports Spark or IPython: where they are not, they show nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from html import escape
from traceback import format_exception
from types import TracebackType
from typing import Any

from headwater.errors import HeadwaterError, hide_logins

OURS = re.compile(r"headwater(?:\.\w+)*\.([A-Z]\w+): (.+)")
"""One of our errors in a text of Spark's: its class and what it says."""

_NAME_UNKNOWN = re.compile("name or service|name resolution|nodename nor servname", re.IGNORECASE)
_OF_SPARK = ("pyspark.", "py4j.")

Calls = TracebackType | None
Shower = Callable[[type[BaseException], BaseException, Calls], Any]


def first_line(error: BaseException) -> str | None:
    """Return the reason and the next step, as the command line prints them; None for an error that is not ours.

    Args:
        error: one of ours, or one of Spark's with ours in its text: Spark passes texts between its processes.
    """
    if isinstance(error, HeadwaterError):
        name, text = type(error).__name__, str(error)
    elif type(error).__module__.startswith(_OF_SPARK) and (texts := OURS.findall(str(error))):
        name, text = texts[-1]
    else:
        return None
    return f"headwater: {hide_logins(' '.join(text.split()))}{next_step(name, text)}"


def next_step(name: str, text: str) -> str:
    """Return the next step after a failed connection, or a connection to another kind of server; other errors have it
    themselves.

    Args:
        name: the error's class. text: its message.
    """
    if name == "BadFrame":
        return "; something answers there that speaks no memcached: is it a node, and its port?"
    if name != "ConnectionLost":
        return ""
    if text.rstrip().endswith("connection refused"):
        return "; no node listens there: start one (headwater serve), or name another address"
    return "; is the name right?" if _NAME_UNKNOWN.search(text) else ""


def show() -> None:
    """Show uncaught errors of ours with their first line, in this process; may be called again."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        show_in(shell)
    elif not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """A `sys.excepthook` in front of the former one."""

    def __init__(self, before: Shower) -> None:
        self._earlier_hook = before

    def __call__(self, kind: type[BaseException], error: BaseException, calls: Calls) -> None:
        line = first_line(error)
        if line is not None:
            print(line, file=sys.stderr)
        if line is not None and hasattr(sys, "ps1"):  # somebody types, and can ask for the rest
            print("(the whole: import traceback; traceback.print_last())", file=sys.stderr)
        else:
            self._earlier_hook(kind, error, calls)


def show_in(shell: Any) -> None:
    """Do the same in a shell of IPython (`InteractiveShell`), unless other code shows errors there: IPython has room
    for one handler.
    """
    if shell.custom_exceptions and getattr(shell.CustomTB, "__name__", "") != _in_ipython.__name__:
        return
    kinds: list[type[BaseException]] = [HeadwaterError]
    if "pyspark" in sys.modules:
        from pyspark.errors import PySparkException  # noqa: PLC0415 -- only where Spark is

        kinds.append(PySparkException)
        with suppress(ImportError):  # the client of Spark Connect alone comes without
            from py4j.protocol import Py4JJavaError  # noqa: PLC0415

            kinds.append(Py4JJavaError)
    shell.set_custom_exc(tuple(kinds), _in_ipython)


def _in_ipython(
    shell: Any, kind: type[BaseException], error: BaseException, calls: Calls, tb_offset: int | None = None
) -> None:
    """Show an error of a cell. IPython leaves this to its handlers, and ignores their results."""
    line = first_line(error)
    if line is None:
        shell.showtraceback((kind, error, calls), tb_offset=tb_offset)
        return
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, calls  # that is where %tb looks
    vars(sys)["last_exc"] = error  # and from Python 3.12 on here
    in_notebook = hasattr(shell, "kernel")
    shell._showtraceback(kind, error, [line] if in_notebook else [line, "(the whole: %tb)"])
    if in_notebook:  # a notebook that is kept has the rest as well
        shell.display_pub.publish(_folded_text(hide_logins("".join(format_exception(kind, error, calls)))))


def _folded_text(text: str) -> dict[str, str]:
    """Return a folded text for a notebook; a program without HTML shows where the text is."""
    title = f"Python and Java behind it, {len(text.splitlines())} lines"
    folded = f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"
    return {"text/plain": f"({title}: %tb)", "text/html": folded}
