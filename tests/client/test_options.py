"""The bounds of a drain's options, and where they may be given."""

import inspect
import pydoc
from collections.abc import Callable
from dataclasses import fields
from typing import get_type_hints

import pytest

from headwater.client import aio, blocking
from headwater.client.options import BatchesOptions, ChangesOptions, DrainOptions
from headwater.client.settings import ConnectOptions, settings_for
from headwater.errors import OptionError


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("name", "é" * 100, "é" * 101),
        ("window_bytes", 0, -1),
        ("window_bytes", 0xFFFF_FFFF, 0x1_0000_0000),
        ("noop_interval_seconds", 0.1, 0.09),
        ("noop_interval_seconds", 10_800.0, 10_801.0),
        ("batch_bytes", 1, 0),
        ("batch_bytes", 256 << 20, (256 << 20) + 1),
        ("patience_seconds", None, -1.0),
        ("max_wait_seconds", 0.0, float("nan")),
        ("answer_seconds", float("inf"), -0.1),
    ],
)
def test_each_option_has_its_bounds(name: str, inside: object, outside: object):
    assert getattr(DrainOptions(**{name: inside}), name) == inside
    with pytest.raises(OptionError) as caught:
        DrainOptions(**{name: outside})
    assert caught.value.name == name


DRAINS = [blocking.Client.changes, blocking.Client.batches, aio.AsyncClient.changes, aio.AsyncClient.batches]


@pytest.mark.parametrize("drain", DRAINS, ids=lambda drain: drain.__qualname__)
def test_a_drain_takes_every_option_by_its_name_with_the_same_default(drain: Callable[..., object]):
    given = {name: parameter.default for name, parameter in inspect.signature(drain).parameters.items()}
    for option in fields(DrainOptions):
        if option.name != "markers":  # only the one that deals in single events has something to put markers between
            assert given[option.name] == option.default, option.name


def test_what_the_type_checker_knows_of_the_keywords_is_what_their_tables_say():
    assert get_type_hints(ChangesOptions) == get_type_hints(DrainOptions)
    assert ChangesOptions.__annotations__.keys() - BatchesOptions.__annotations__.keys() == {"markers"}
    settings = get_type_hints(settings_for)
    assert get_type_hints(ConnectOptions).items() <= settings.items()
    assert settings.keys() - ConnectOptions.__annotations__ == {"connection", "user", "password", "clock", "return"}


@pytest.mark.parametrize("drain", DRAINS, ids=lambda drain: drain.__qualname__)
def test_help_lists_each_keyword_with_its_default(drain: Callable[..., object]):
    shown = pydoc.plain(pydoc.render_doc(drain))
    assert "patience_seconds: 'float | None' = 60.0" in shown and "options" not in shown.splitlines()[2]
    assert ("markers: 'bool' = True" in shown) == drain.__name__.endswith("changes")


def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant():
    client = blocking.Client.__new__(blocking.Client)
    with pytest.raises(OptionError, match=r'"pateince_seconds".*did you mean "patience_seconds"\?'):
        client.changes(pateince_seconds=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there are start, vbuckets, until, name"):
        client.batches(zebra=3)  # type: ignore[arg-type]
