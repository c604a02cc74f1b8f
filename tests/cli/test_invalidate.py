"""The invalidate command. The pipeline itself is tested in tests/pipelines."""

from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.pipelines.redis_server import redis_server
from tests.spark.conftest import lent_spark, spark

__all__ = ["lent_spark", "spark"]


@pytest.mark.battery
@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.usefixtures("lent_spark")
def test_what_changed_is_deleted_in_redis(tmp_path: Path) -> None:
    with redis_server() as cache, testing.node(vbuckets=8) as bucket, bucket.client() as client:
        server = redis.Redis.from_url(cache)
        client.set_many({"a": "1", "b": "1"})
        server.mset({"user:a": "cached", "a:page": "cached", "user:c": "cached"})
        line = ["invalidate", bucket.url, cache, "--once"]
        line += ["--checkpoint", str(tmp_path / "checkpoint"), "--template", "user:{key}", "--template", "{key}:page"]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
        assert "2 changes, 4 keys deleted, 2 of them were there" in done.stdout
        assert server.keys() == [b"user:c"]
        server.close()


def test_a_wrong_address_is_told_before_spark_starts(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket:
        for cache, status in (("memcached://127.0.0.1:1", 1), ("http://a", 2)):
            line = ["invalidate", bucket.url, cache, "--checkpoint", str(tmp_path / "checkpoint")]
            result = CliRunner().invoke(app, line)
            assert (result.exit_code, result.stdout) == (status, "")
            assert result.stderr.startswith("headwater: ") and result.stderr.count("\n") == 1
    assert not (tmp_path / "checkpoint").exists()
