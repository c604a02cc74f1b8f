"""Values of parameters that need no check, for they already have the right type.

typer has pydantic check each value of each parameter. The import of pydantic takes a tenth of a second of a processor,
as long as all the rest of `headwater get`. A text for a text parameter is always right, and so is a declared default.
Values to convert (a number, a path, a choice) still go to typer, and so do values that may be refused.
"""

from typing import Any

__all__ = ["take_as_it_is"]


def take_as_it_is(parameter: Any) -> Any:
    """Let typer check only those values of a command's parameter that may be wrong; return the parameter (may be called
    again).

    A release of typer that reads values in another way checks all of them.
    """
    if not (hasattr(parameter, "get_runtime_param") and hasattr(parameter, "type_descriptor")):
        return parameter
    if not isinstance(getattr(parameter.get_runtime_param, "__self__", None), _Values):
        parameter.get_runtime_param = _Values(parameter).itself
    return parameter


class _Values:
    """The values of one parameter; typer asks for `coerce`."""

    def __init__(self, parameter: Any) -> None:
        self._read_by_typer = parameter.get_runtime_param
        descriptor = parameter.type_descriptor
        self._kind = descriptor.annotation if descriptor.parameter_info.parser is None else None
        self._default = parameter.default
        self._empty = () if parameter.multiple or parameter.nargs == -1 else None

    def itself(self) -> "_Values":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value in the form for the command. Raises typer.BadParameter."""
        if value is None:
            return self._empty
        if type(value) is self._kind and (self._kind is str or value is self._default):
            return value
        return self._read_by_typer().coerce(value, param=param, ctx=ctx)
