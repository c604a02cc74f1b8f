"""Remarks of who waits: late enough to matter, seldom enough to be read."""

from __future__ import annotations

import pytest

from headwater.spark.remarks import GRACE_SECONDS, REMARK_SECONDS, Remarks


def test_what_lasts_is_said_after_a_moment_then_seldom_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    remarks = Remarks(lambda: now[0])
    remarks.is_over("never said, so not said")
    for seconds in (0.0, GRACE_SECONDS, 1.0, REMARK_SECONDS - 1.0, 1.0):
        now[0] += seconds
        remarks.waits("it rains")
    remarks.is_over("the sun shines")
    remarks.is_over("the sun shines")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["for 5 s: it rains", "for 65 s: it rains", "after 66 s: the sun shines"]


def test_what_passes_in_a_moment_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    remarks = Remarks(lambda: 1.0)
    assert remarks.waits("it rains") == 0.0
    remarks.is_over("the sun shines")
    assert caplog.records == []
