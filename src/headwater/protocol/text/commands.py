"""From a command as it was asked to the steps that carry it out. Source: kv.md 7."""

from __future__ import annotations

from headwater.protocol.text import classic, meta
from headwater.protocol.text.line import TAKES_DATA, Asked
from headwater.protocol.text.words import BAD_LINE, ERROR, LineRefused, Steps
from headwater.wire.layout import Request

__all__ = ["steps"]

_NOREPLY = b"noreply"


def steps(asked: Asked, now: int, *, is_stranger: bool = False) -> Steps:
    """Return the steps of a command.

    Args:
        now: Unix seconds.
        is_stranger: nobody has logged in, who has to.
    """
    if asked.closes:
        return _said(asked.problem)
    if is_stranger:
        return _checked(classic.login(asked.words, None if asked.problem else asked.block))
    name = asked.words[0] if asked.words else b""
    if name in meta.COMMANDS:
        return _problem(asked) or _checked(meta.COMMANDS[name](asked.words, asked.block or b"", now))
    command = classic.COMMANDS.get(name)
    return _said(ERROR) if command is None else _classic(command, asked)


def _problem(asked: Asked) -> Steps | None:
    """The steps of a command whose data are not as its line says, or whose line does not say how long they are."""
    if not asked.problem and asked.block is None and asked.words[0] in TAKES_DATA:
        return _said(BAD_LINE)
    return _said(asked.problem) if asked.problem else None


def _classic(command: classic.Classic, asked: Asked) -> Steps:
    given = asked.words
    is_quiet = command.noreply and len(given) > command.least and given[-1] == _NOREPLY
    if is_quiet:
        given = given[:-1]
    if len(given) < command.least or (command.most is not None and len(given) > command.most):
        return _said(ERROR)
    made = _problem(asked) or _checked(command.steps(given, asked.block or b""))
    return _silent(made) if is_quiet else made


def _said(line: bytes) -> Steps:
    yield line


def _checked(made: Steps) -> Steps:
    """The steps, or the line that says why there are none."""
    try:
        yield from made
    except LineRefused as refused:
        yield refused.line


def _silent(made: Steps) -> Steps:
    """The steps without anything to say."""
    answer = None
    while True:
        try:
            step = made.send(answer)
        except StopIteration:
            return
        answer = (yield step) if isinstance(step, Request) else None
