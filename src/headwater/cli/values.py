"""Values of parameters that are what they have to be already, which nobody needs to look at.

typer has pydantic check each value of each parameter. To import that takes a tenth of a second of a processor, as long
as all the rest of `headwater get`; and a text that is to be a text is right, as is a default that we declared. What is
to become something else (a number, a path, a choice) goes to typer as ever, and so does what may be refused.
"""

from typing import Any

__all__ = ["take_as_it_is"]


def take_as_it_is(parameter: Any) -> Any:
    """Let a parameter of a command have typer look only at values that may be wrong; returns it (twice is once).

    Where a release of typer reads values in another way, it looks at all of them.
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
        self._nothing = () if parameter.multiple or parameter.nargs == -1 else None

    def itself(self) -> "_Values":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value as the command gets it. Raises typer.BadParameter."""
        if value is None:
            return self._nothing
        if type(value) is self._kind and (self._kind is str or value is self._default):
            return value
        return self._read_by_typer().coerce(value, param=param, ctx=ctx)
