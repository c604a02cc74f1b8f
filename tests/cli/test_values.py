"""Values that nobody has to look at are taken as they are; all others are read by typer."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from headwater.cli.commands import parameters
from headwater.cli.values import take_as_it_is


def parameter(kind: Any, default: Any, **about: Any) -> Any:
    (made,) = parameters([("it", Annotated[kind, typer.Option("--it", **about)], default)])
    return made


def coerced(made: Any, value: Any) -> Any:
    return made.get_runtime_param().coerce(value, param=made, ctx=None)


def doubled(text: Any) -> int:
    return int(text) * 2


def capital(text: Any) -> str:
    return str(text).upper()


CASES: list[tuple[Any, Any, dict[str, Any], list[Any]]] = [
    (str, "", {}, ["", "a text", None, 7]),
    (str | None, None, {}, [None, "x"]),
    (int, 7, {"min": 0, "max": 9}, [7, "7", 3, None]),
    (float, 0.5, {}, [0.5, "0.25", 3]),
    (bool, False, {}, [True, False, "true", "no", None]),
    (Path | None, None, {}, [None, "there"]),
    (list[str] | None, None, {}, [None, ["a", "b"], []]),
    (Literal["mild", "black"], "mild", {}, ["mild", "black", None]),
    (int, 5, {"parser": doubled}, ["3", 5]),
    (str, "x", {"parser": capital}, ["x", "y"]),
]


@pytest.mark.parametrize(("kind", "default", "about", "values"), CASES, ids=range(len(CASES)))
def test_every_value_comes_out_as_typer_reads_it(
    kind: Any, default: Any, about: dict[str, Any], values: list[Any]
) -> None:
    for value in values:
        plain, ours = parameter(kind, default, **about), take_as_it_is(parameter(kind, default, **about))
        expected = coerced(plain, value)
        assert (coerced(ours, value), type(coerced(ours, value))) == (expected, type(expected))


@pytest.mark.parametrize(("kind", "about", "value"), [(int, {"min": 1}, 0), (int, {}, "x"), (bool, {}, "perhaps")])
def test_a_value_that_cannot_be_is_refused_as_ever(kind: Any, about: dict[str, Any], value: Any) -> None:
    made = take_as_it_is(parameter(kind, kind(1), **about))
    with pytest.raises(typer.BadParameter):
        coerced(made, value)


def test_a_text_and_a_default_need_no_reader_of_typers() -> None:
    for kind, default, value in (
        (str, "", "a"),
        (int, 7, 7),
        (Path | None, None, None),
        (list[str] | None, None, None),
    ):
        made = parameter(kind, default)
        made.get_runtime_param = None
        with pytest.raises(TypeError):
            made.get_runtime_param()
        assert coerced(take_as_it_is(made), value) in (value, ())


def test_a_parameter_that_is_taken_twice_is_taken_once() -> None:
    made = take_as_it_is(parameter(str, ""))
    first = made.get_runtime_param()
    assert take_as_it_is(made).get_runtime_param() is first


def test_a_parameter_of_another_release_of_typer_is_left_to_it() -> None:
    class Other:
        """A parameter that reads its values in another way."""

    other = Other()
    assert take_as_it_is(other) is other and vars(other) == {}
