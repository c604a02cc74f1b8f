"""The libraries that extras bring: one that is missing is told with the extra that brings it, and not much else."""

import pytest

from headwater.cli import extras


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyroaring", "lake"),
        ("redis", "redis"),
        ("fsspec", "objects"),
        ("s3fs.core", "s3"),
        ("starlette.requests", "console"),
        ("delta", "spark"),
        ("pandas", "source"),
    ],
)
def test_the_smallest_extra_that_brings_it_is_named(module: str, extra: str) -> None:
    told = extras.advice(ModuleNotFoundError(f"No module named {module!r}", name=module))
    name = module.partition(".")[0]
    assert told is not None and told.startswith(f"{name} is missing: pip install '{name}")
    assert told.endswith(f", or headwater with the extra `{extra}`")


@pytest.mark.parametrize("module", ["numpy", "headwater.nothing", "no_such_thing"])
def test_what_no_extra_brings_is_not_told(module: str) -> None:
    assert extras.advice(ModuleNotFoundError(f"No module named {module!r}", name=module)) is None


def test_an_error_without_a_name_is_not_told() -> None:
    assert extras.advice(ModuleNotFoundError("import of something halted")) is None


def test_all_that_is_missing_is_told_in_one_line() -> None:
    line = extras.lacking(["starlette", "jinja2"])
    wanted = "'starlette>=0.45' 'jinja2>=3.1'"
    assert line == f"starlette, jinja2 are missing: pip install {wanted}, or headwater with the extra `console`"
    assert extras.lacking(["starlette", "no_such_thing"]) is None
