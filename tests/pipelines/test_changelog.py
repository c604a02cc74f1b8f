from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.changelog import ChangeLog

pytestmark = pytest.mark.spark

SCHEMA = "vbucket int, seqno bigint, vb_uuid string, event string"


def changes(spark: Any, *rows: tuple[int, int, str]) -> Any:
    """(vbucket, seqno, event)"""
    return spark.createDataFrame([(vb, seqno, "a", event) for vb, seqno, event in rows], SCHEMA)


def held(spark: Any, log: ChangeLog) -> list[tuple[int, int, int, str]]:
    rows = spark.read.format("delta").load(log.path).collect()
    return sorted((row.batch, row.vbucket, row.seqno, row.event) for row in rows)


def test_a_replay_adds_only_what_the_log_lacks_unless_a_rollback_explains_it(spark: Any, tmp_path: Path) -> None:
    log = ChangeLog(spark, str(tmp_path / "log"))
    log.append(changes(spark, (1, 1, "mutation"), (1, 2, "mutation")), {1: (1, 2)}, {}, ("app", 0))
    log.append(changes(spark, (1, 1, "mutation")), {1: (1, 1)}, {}, ("app", 0))  # batch 0 is there already
    log = ChangeLog(spark, log.path)  # as after a restart
    log.append(changes(spark, (1, 2, "mutation"), (1, 3, "deletion")), {1: (2, 3)}, {}, ("app", 1))
    assert held(spark, log) == [(0, 1, 1, "mutation"), (0, 1, 2, "mutation"), (1, 1, 3, "deletion")]
    log.append(changes(spark, (1, 1, "rollback"), (1, 2, "mutation")), {1: (2, 2)}, {1: 1}, ("app", 2))
    assert held(spark, log)[3:] == [(2, 1, 1, "rollback"), (2, 1, 2, "mutation")]
