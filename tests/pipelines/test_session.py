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
        session.check_spark(delta=True)
    session.check_spark(delta=False)


def test_jars_that_were_fetched_are_found_again_until_one_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    jars = [tmp_path / "delta-spark_4.2.jar", tmp_path / "other.jar"]
    assert session._fetched() == []
    for jar in jars:
        jar.touch()
    session._remember(",".join(f"file://{jar}" for jar in jars))
    assert session._fetched() == [str(jar) for jar in jars]
    jars[1].unlink()
    assert session._fetched() == []


def test_the_jars_of_somebody_elses_session_are_not_taken_for_deltas(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    session._remember("file:///lib/kafka.jar")
    assert session._fetched() == []


def test_hadoop_goes_to_the_store_that_the_environment_names() -> None:
    assert session._s3({}) == {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    told = session._s3({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_DEFAULT_REGION": "eu-central-1"})
    assert told["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert told["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert told["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"


@pytest.mark.spark
def test_a_session_speaks_delta_and_dcp(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
