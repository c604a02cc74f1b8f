from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines import session
from headwater.pipelines.session import SparkUnavailable, local_session


def test_a_missing_java_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SparkUnavailable) as told:
        local_session("test")
    assert "Spark needs Java 17 or newer and there is none on this machine" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_java_home_that_leads_nowhere_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(SparkUnavailable, match="point JAVA_HOME"):
        local_session("test")


def test_a_spark_that_delta_does_not_support_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "version", lambda name: "4.3.0")
    with pytest.raises(SparkUnavailable, match=r"needs PySpark 4\.2 and this is 4\.3\.0"):
        session._check()


def test_it_is_known_whether_the_jars_were_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert not session._fetched()
    jars = tmp_path / ".ivy2.5.2" / "jars"
    jars.mkdir(parents=True)
    (jars / session.DELTA_JAR).touch()
    assert session._fetched()


@pytest.mark.spark
def test_a_session_speaks_delta_and_dcp(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
