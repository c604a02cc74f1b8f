"""A command has parameters that its function does not take."""

import inspect
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from headwater.cli.commands import CommandWithForms, parameters
from headwater.cli.forms import forms


def app_of(function: Any) -> typer.Typer:
    app = typer.Typer()
    app.command(cls=CommandWithForms)(function)
    return app


def test_parameters_are_made_of_what_is_declared_and_are_required_without_a_default() -> None:
    one, two = parameters(
        [
            ("size", Annotated[int, typer.Option("--size", help="How large.")], 3),
            ("to", Annotated[str, typer.Option()], ...),
        ]
    )
    assert (one.opts, one.default, one.help, one.required) == (["--size"], 3, "How large.", False)
    assert (two.opts, two.required) == (["--to"], True)


def test_a_function_has_the_forms_without_taking_them() -> None:
    heard: list[tuple[str, bool, bool]] = []

    def work(name: str) -> None:
        heard.append((name, forms().json, forms().quiet))

    assert CliRunner().invoke(app_of(work), ["a", "--json", "-q"]).exit_code == 0
    assert heard == [("a", True, True)]
    assert list(inspect.signature(work).parameters) == ["name"]
    assert forms() == type(forms())()


def test_a_form_of_its_own_is_the_functions() -> None:
    heard: list[bool] = []

    def work(lines: Annotated[bool, typer.Option("--json")] = False) -> None:
        heard.append(lines and not forms().json)

    assert CliRunner().invoke(app_of(work), ["--json"]).exit_code == 0
    assert heard == [True]


def test_a_password_has_a_file(tmp_path: Any) -> None:
    heard: list[str | None] = []

    def work(
        user: Annotated[str | None, typer.Option("--user")] = None,
        password: Annotated[str | None, typer.Option("--password")] = None,
    ) -> None:
        heard.append(password)

    (file := tmp_path / "password").write_text("secret\n")
    file.chmod(0o600)
    asked = ["--user", "ann", "--password-file", str(file)]
    assert CliRunner().invoke(app_of(work), asked).exit_code == 0
    assert CliRunner().invoke(app_of(work), [*asked, "--password", "typed"]).exit_code == 0
    assert heard == ["secret", "secret"]
