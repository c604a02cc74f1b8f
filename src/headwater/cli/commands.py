"""A command of the command line: its function's parameters, and those of all commands.

    --json, --quiet, --verbose     the forms of its output (forms.py), unless it declares its own
    --password-file                for each of its passwords (passwords.py)

They are parameters of the command, not of its function, so no function has to pretend to take them.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import field, make_dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, get_type_hints

import typer
from typer.core import TyperCommand

from headwater.cli.forms import FORMS, Forms, speaking
from headwater.cli.passwords import file_option, password_given, passwords_in
from headwater.cli.units import reader_of
from headwater.cli.values import take_as_it_is
from headwater.options import Option

__all__ = ["CommandWithForms", "Parameter", "parameter_of", "parameters"]

Parameter = tuple[str, Any, Any]
"""The name of a parameter, its annotation as typer reads it, and its default (... where it is required)."""
SHOWN = "shown"
"""The parameter of jobs that says how progress is printed."""


def parameters(parameters_: Iterable[Parameter]) -> list[Any]:
    """Return parameters of a command, made by typer from a function with these parameters."""
    fields = [
        (name, kind, field(kw_only=True) if default is ... else field(default=default, kw_only=True))
        for name, kind, default in parameters_
    ]
    app = typer.Typer(add_completion=False)
    app.command()(make_dataclass("Parameters", fields))
    return list(typer.main.get_command(app).params)


def parameter_of(option: Option, done: str = "") -> Parameter:
    """Return a declared option in typer's form; `done` completes its value."""
    settings: dict[str, Any] = {
        "metavar": option.metavar or (option.unit.metavar if option.unit else None),
        "envvar": option.env or None,
        "help": option.about.replace("{done}", done),
        "hidden": option.hidden,
    }
    kind: Any = Literal[option.choices] if option.choices else option.kind
    if option.unit is not None:
        settings["parser"] = reader_of(option)
    elif option.kind in (int, float):
        settings |= {"min": option.least, "max": option.most}
    default = option.default
    if option.many:
        kind = StrEnum(option.field, {choice: choice for choice in option.choices}) if option.choices else kind
        kind, default = list[kind] | None, None if default is not ... else ...
    elif default is None:
        kind |= None
    parameter = (
        typer.Argument(**settings) if option.positional else typer.Option(f"--{option.flag or option.name}", **settings)
    )
    return option.field, Annotated[kind, parameter], default


class CommandWithForms(TyperCommand):
    """A command with the forms, and with a file option for each of its passwords.

    Attributes:
        forms: its forms, by the names of their parameters.
        kinds: the annotation of each parameter.
    """

    forms: ClassVar[Mapping[str, tuple[str, Any, Any]]] = FORMS

    def __init__(self, name: str | None, *, callback: Any = None, params: Any = None, **attributes: Any) -> None:
        more_declared = self.declared()
        all_parameters = [*(params or ()), *parameters(more_declared)]
        flags = {flag for parameter in all_parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
        names = {parameter.name for parameter in all_parameters}
        self._passwords = [each for each in passwords_in(names) if f"{each}_file" not in names]
        self._forms = [each for each, form in self.forms.items() if form[0] not in flags and each not in names]
        own_parameters: list[Parameter] = [(f"{each}_file", file_option(each), None) for each in self._passwords]
        own_parameters += [(form, *self.forms[form][1:]) for form in self._forms]
        hints = get_type_hints(inspect.unwrap(callback)) if callback is not None else {}
        self.kinds: Final = hints | {each: kind.__origin__ for each, kind, _ in (*more_declared, *own_parameters)}
        super().__init__(name, callback=callback, params=[*all_parameters, *parameters(own_parameters)], **attributes)
        for param in self.params:
            take_as_it_is(param)

    def declared(self) -> list[Parameter]:
        """Return the parameters beyond those of the function."""
        return []

    def invoke(self, ctx: Any) -> Any:
        """Run the function in the chosen forms, with the passwords from files or the terminal."""
        values = ctx.params
        values_ = {form: values.pop(form) if form in self._forms else values.get(form) for form in FORMS}
        forms = Forms(bool(values_["as_json"]), bool(values_["quiet"]), int(values_["verbose"] or 0))
        if SHOWN in values and (forms.json or forms.quiet):
            values[SHOWN] = type(values[SHOWN])("json" if forms.json else "none")
        with speaking(forms):
            for each in self._passwords:
                values[each] = password_given(ctx, each, values.pop(f"{each}_file"))
            return self.perform(ctx)

    def perform(self, ctx: Any) -> Any:
        """Call the function."""
        return super().invoke(ctx)
