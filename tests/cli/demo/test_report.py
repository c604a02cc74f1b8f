"""The page the demo leaves behind."""

import json
from pathlib import Path

from headwater.cli.demo.report import write_report
from headwater.cli.demo.samples import Samples


def test_the_page_holds_the_verdict_the_numbers_and_a_drawing(tmp_path: Path) -> None:
    seconds = iter(range(100))
    samples = Samples(lambda: float(next(seconds)))
    samples.add(1000, 0)
    samples.mark("kill -9")
    samples.add(2000, 1500)
    page = write_report(tmp_path / "new", samples, {"documents": 336776, "changes/s": 12345.678, "<b>": "x<y"}, "equal")
    text = page.read_text("utf-8")
    assert "headwater demo: equal" in text and "336,776" in text and "12,345.7" in text
    assert "<svg" in text and "kill -9" in text and "x&lt;y" in text and "&lt;b&gt;" in text
    assert json.loads((tmp_path / "new" / "summary.json").read_text())["verdict"] == "equal"
