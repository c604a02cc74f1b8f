"""All files with commands are listed: a handler that nobody imports would be an unknown command."""

from __future__ import annotations

import ast
from pathlib import Path

from headwater.node import handlers
from headwater.node.kv.command import COMMANDS

NODE = Path(handlers.__file__).parent
REGISTER = {"handles", "passes"}


def registers(path: Path) -> bool:
    """Return True if a file has a function that a decorator makes a command's handler."""
    decorators = (
        decorator
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
    )
    return any(
        isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") in REGISTER for decorator in decorators
    )


def test_each_file_that_registers_a_command_is_listed() -> None:
    with_commands = {path for path in NODE.rglob("*.py") if registers(path)}
    listed = {Path(str(module.__file__)) for module in handlers.ALL}
    assert len(with_commands) > 10
    assert with_commands - listed == set()


def test_each_listed_file_has_commands_that_a_node_answers() -> None:
    modules = {command.handler.__module__ for command in COMMANDS.values()}
    assert {module.__name__ for module in handlers.ALL} - modules == set()
