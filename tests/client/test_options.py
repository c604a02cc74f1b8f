"""The bounds of a drain's options."""

import pytest

from headwater.client.options import DrainOptions
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
