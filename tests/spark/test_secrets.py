"""A password in the url of the Spark source: nothing that Spark shows or keeps has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater import testing

pytestmark = pytest.mark.spark
SECRET = "s3cretword"


@pytest.mark.parametrize("how", ["load", "option"])
def test_plans_progress_and_checkpoints_have_no_password(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    with testing.node(vbuckets=4, user="ann", environment={"HEADWATER_PASSWORD": SECRET}) as node:
        url = node.url.replace("://", f"://ann:{SECRET}@")

        def loaded(reader: Any) -> Any:
            reader = reader.format("dcp")
            return reader.load(url) if how == "load" else reader.option("url", url).load()

        with node.client("ann", SECRET) as bucket:
            bucket.set(b"k", b"v")
        frame = loaded(spark.read)
        assert frame.count() == 1
        frame.explain(True)
        query = (
            loaded(spark.readStream)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        query.explain(True)
        shown = capsys.readouterr().out + str(query.recentProgress)
        kept = [file for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
        assert kept and not any(SECRET.encode() in file.read_bytes() for file in kept)
        assert "dcp" in shown.lower() and SECRET not in shown
