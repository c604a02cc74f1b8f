import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.pipelines import starting
from headwater.pipelines.starting import ClassArchive


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "a cache"))
    return tmp_path / "a cache"


def ended(status: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"])


def written(archive: ClassArchive) -> Path:
    """The file that the JVM is told to write."""
    return Path(archive.option.partition("=")[2].partition('"')[0])


def test_the_archive_of_classes_is_written_by_the_first_run_and_mapped_by_the_next(cache: Path) -> None:
    first = ClassArchive()
    assert first.option.startswith('"-XX:ArchiveClassesAtExit=')
    written(first).write_bytes(b"classes")
    assert first.keep(ended(0))
    assert (second := ClassArchive()).option == f'"-XX:SharedArchiveFile={second.path}" -Xshare:auto -Xlog:disable'
    assert [path.read_bytes() for path in cache.iterdir()] == [b"classes"]
    assert not second.wanted


def test_an_archive_whose_jvm_failed_is_not_kept() -> None:
    archive = ClassArchive()
    written(archive).write_bytes(b"half of it")
    assert not archive.keep(ended(1))
    assert ClassArchive().wanted


def test_a_jvm_that_wrote_nothing_is_no_error() -> None:
    assert not ClassArchive().keep(ended(0))


def test_the_archive_of_another_spark_or_java_and_an_old_half_one_are_removed(cache: Path) -> None:
    cache.mkdir()
    old, half, young = (cache / f"spark-{name}" for name in ("0123456789abcdef.jsa", "1.2.new", "1.3.new"))
    for path in (old, half, young):
        path.write_bytes(b"old")
    os.utime(half, (1, 1))
    ClassArchive()
    assert list(cache.glob("spark-*")) == [young]


def test_a_spark_of_the_users_own_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert (ClassArchive().option, starting.python()) == ("", sys.executable)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert (ClassArchive().option, starting.python()) == ("", sys.executable)


def test_python_finds_the_installed_pyspark_before_the_zipped_one_and_all_else_as_before(tmp_path: Path) -> None:
    kept = tmp_path / "of the user *"
    kept.mkdir()
    (kept / "mine.py").write_text("")
    lib = f"{starting._installed()}/python/lib"
    path = f"{lib}/pyspark.zip:{lib}/py4j-0.10.9.9-src.zip:{kept}"
    text = "import sys, mine, pyspark; print(pyspark.__file__, sys.prefix, *sys.argv[1:], sep='|')"
    command = [starting.python(), "-c", text, "an argument", "*"]
    found = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    where, prefix, *arguments = found.stdout.strip().split("|")
    assert Path(where) == (starting._installed() or Path()) / "__init__.py"
    assert (prefix, arguments) == (sys.prefix, ["an argument", "*"])
