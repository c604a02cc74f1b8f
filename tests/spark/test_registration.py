"""`headwater.spark.register` and the package that Spark finds by its name."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pyspark_headwater
from headwater.spark import register, slots
from headwater.spark.source import DcpDataSource


def registered(session: Any) -> type[DcpDataSource]:
    known: list[type[DcpDataSource]] = []
    session.dataSource = SimpleNamespace(register=known.append)
    register(session)
    return known[0]


def test_registering_tells_how_many_tasks_run_at_once() -> None:
    source = registered(SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=12)))
    assert (source.name(), source.slots) == ("dcp", 12)
    assert issubclass(source, DcpDataSource)


def test_slots_are_asked_of_the_session_and_unknown_where_it_hides_them() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=7))
    hidden: Any = SimpleNamespace()
    assert (slots(session), slots(hidden)) == (7, None)


def test_a_session_that_hides_its_slots_is_served_as_well() -> None:
    assert registered(SimpleNamespace()).slots is None


def test_spark_finds_the_source_by_the_name_of_its_package() -> None:
    assert pyspark_headwater.DefaultSource is DcpDataSource


def test_the_package_imports_nothing_heavy_and_never_raises() -> None:
    """A pyspark_* module that raises makes Spark forget those of all others."""
    light = (
        "import sys, pyspark_headwater; assert not {'numba', 'pyarrow', 'numpy', 'headwater.client'} & set(sys.modules)"
    )
    broken = "import sys; sys.modules['headwater.spark.source'] = None; import pyspark_headwater"
    for code in (light, broken):
        subprocess.run([sys.executable, "-c", code], check=True)
