"""Converts a command of the text protocol to the steps that execute it. Source: kv.md 7."""

from __future__ import annotations

from headwater.protocol.text import classic, meta
from headwater.protocol.text.line import TAKES_DATA, TextCommand
from headwater.protocol.text.words import BAD_LINE, ERROR, LineRefused, Steps
from headwater.wire.layout import Request

__all__ = ["steps"]

_NOREPLY = b"noreply"


def steps(line: TextCommand, now: int, *, is_stranger: bool = False) -> Steps:
    """Return the steps of a command.

    Args:
        now: Unix seconds.
        is_stranger: True if a login is needed and has not happened.
    """
    if line.closes:
        return _reply(line.problem)
    if is_stranger:
        return _with_refusals(classic.login(line.words, None if line.problem else line.block))
    name = line.words[0] if line.words else b""
    if name in meta.COMMANDS:
        return _problem(line) or _with_refusals(meta.COMMANDS[name](line.words, line.block or b"", now))
    command = classic.COMMANDS.get(name)
    return _reply(ERROR) if command is None else _classic(command, line)


def _problem(command: TextCommand) -> Steps | None:
    """Return steps that answer with the error if a command's data do not match its line, or the line lacks their
    length; None if there is no problem.
    """
    if not command.problem and command.block is None and command.words[0] in TAKES_DATA:
        return _reply(BAD_LINE)
    return _reply(command.problem) if command.problem else None


def _classic(command: classic.Classic, line: TextCommand) -> Steps:
    line_words = line.words
    is_quiet = command.noreply and len(line_words) > command.least and line_words[-1] == _NOREPLY
    if is_quiet:
        line_words = line_words[:-1]
    if len(line_words) < command.least or (command.most is not None and len(line_words) > command.most):
        return _reply(ERROR)
    steps = _problem(line) or _with_refusals(command.steps(line_words, line.block or b""))
    return _without_answers(steps) if is_quiet else steps


def _reply(line: bytes) -> Steps:
    yield line


def _with_refusals(steps: Steps) -> Steps:
    """Run the steps; after a LineRefused, answer with its line."""
    try:
        yield from steps
    except LineRefused as error:
        yield error.line


def _without_answers(steps: Steps) -> Steps:
    """Run the steps, and discard their answers."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = (yield step) if isinstance(step, Request) else None
