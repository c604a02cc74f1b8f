"""The progress of a job that runs until it is ended: after each batch a line for people, a JSON object, or nothing."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from headwater.pipelines.attempts import Progress

P = TypeVar("P", bound="Progress")


class ProgressFormat(StrEnum):
    """The form that progress is printed in."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


ProgressOption = Annotated[
    ProgressFormat, typer.Option("--progress", help="A line for people or one JSON object for each batch, or nothing.")
]


def reporter(shown: ProgressFormat, line: Callable[[P], str]) -> Callable[[P], None]:
    """Return the function that prints a job's progress; `line` is the text of a batch that went well."""

    def text(progress: P) -> None:
        if progress.problem:
            typer.echo(f"headwater: {progress.problem}; trying again", err=True)
        else:
            typer.echo(line(progress))

    return {
        ProgressFormat.TEXT: text,
        ProgressFormat.JSON: lambda progress: typer.echo(json.dumps(progress.to_json())),
        ProgressFormat.NONE: lambda progress: None,
    }[shown]
