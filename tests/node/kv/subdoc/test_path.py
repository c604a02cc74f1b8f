"""Paths as applications write them."""

import pytest

from headwater.node.kv.subdoc.path import parse
from headwater.node.refused import CommandRefused
from headwater.wire.status import Status

PATHS = {
    "": (),
    "name": ("name",),
    "a.b.c": ("a", "b", "c"),
    "a[0]": ("a", 0),
    "[3].b[-1]": (3, "b", -1),
    "a[1][2]": ("a", 1, 2),
    "`a.b`.c": ("a.b", "c"),
    "x.`[0]`": ("x", "[0]"),
    "`back``tick`": ("back`tick",),
    "größe.🦀": ("größe", "🦀"),
    "with space": ("with space",),
    "0": ("0",),
}


@pytest.mark.parametrize(("path", "components"), PATHS.items())
def test_a_path_is_names_and_indexes(path: str, components: tuple[str | int, ...]) -> None:
    assert parse(path.encode()) == components


NO_PATHS = [
    ".",
    "a.",
    ".a",
    "a..b",
    "a[",
    "a[]",
    "a[x]",
    "a[-2]",
    "a]",
    "a[0]b",
    "a`b`",
    "`a",
    "``",
    "a.[0]",
    "[1",
    "\xff",
]


@pytest.mark.parametrize("path", [*NO_PATHS, "\xff"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(CommandRefused) as caught:
        parse(path.encode("latin-1"))
    assert caught.value.status == Status.SUBDOC_PATH_EINVAL


def test_a_path_has_32_components_and_1024_bytes_at_most() -> None:
    assert len(parse(b".".join([b"a"] * 32))) == 32
    assert parse(b"a" * 1024) == ("a" * 1024,)
    for path, status in ((b".".join([b"a"] * 33), Status.SUBDOC_PATH_E2BIG), (b"a" * 1025, Status.EINVAL)):
        with pytest.raises(CommandRefused) as caught:
            parse(path)
        assert caught.value.status == status
