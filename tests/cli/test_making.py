"""Commands made of functions, of jobs and of groups."""

import typer
from typer.testing import CliRunner

from headwater.cli.commands import CommandWithForms
from headwater.cli.failures import Commands
from headwater.cli.making import command_of
from headwater.pipelines.jobs import Observer

PART = "Of tests"


def hello(name: str = "you") -> None:
    """Greet [somebody].

    By name.
    """
    typer.echo(f"hello {name}")


def group() -> typer.Typer:
    made = typer.Typer(help="Greet in several ways.")
    made.command("loud")(lambda: typer.echo("HELLO"))
    made.command("low")(lambda: typer.echo("hello"))
    return made


def test_a_function_becomes_a_command_with_the_forms_and_its_docstring() -> None:
    made = command_of("hello", hello, PART, examples="Examples:")
    assert isinstance(made, CommandWithForms) and (made.name, made.rich_help_panel) == ("hello", PART)
    assert (made.help, made.epilog) == ("Greet [somebody].\n\nBy name.".replace("[s", "\\[s"), "Examples:")
    assert {"name", "as_json", "quiet", "verbose"} <= {param.name for param in made.params}


def test_a_group_keeps_its_own_help_unless_another_is_given() -> None:
    assert command_of("greet", group(), PART).help == "Greet in several ways."
    made = command_of("greet", group(), PART, text="In\nshort.", examples="Examples:")
    assert (made.help, made.epilog, list(made.commands)) == ("In short.", "Examples:", ["loud", "low"])
    assert all(isinstance(command, CommandWithForms) for command in made.commands.values())


def test_a_job_becomes_the_command_of_its_declaration() -> None:
    made = command_of(Observer.NAME, Observer, PART, is_job=True, live=hello)
    assert made.job is Observer and made.live is hello


def test_a_command_that_is_made_alone_runs_in_a_group_of_commands() -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)
    whole = typer.main.get_command(app)
    whole.commands["hello"] = command_of("hello", hello, PART)  # type: ignore[attr-defined]
    done = CliRunner().invoke(app, ["nothing"])
    assert done.exit_code == 2
    assert whole.commands["hello"].make_context("hello", ["--name", "me"]).params["name"] == "me"  # type: ignore[attr-defined]
