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
    assert "headwater demo: equal" in text and "336,776" in text and "12,346" in text
    assert "<svg" in text and "kill -9" in text and "x&lt;y" in text and "&lt;b&gt;" in text
    assert 'name="viewport"' in text and "overflow-x" in text  # on a phone the drawing scrolls
    assert json.loads((tmp_path / "new" / "summary.json").read_text())["verdict"] == "equal"


def test_the_load_is_drawn_and_the_wait_for_the_mirror_is_one_band(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 92.0, 93.0, 94.0])
    samples = Samples(lambda: next(times))
    samples.begin()
    samples.add(500, 0)
    samples.add(1000, 0)
    samples.mark("loaded")
    samples.waited = (2.0, 92.0)
    samples.add(1000, 0)
    samples.add(1000, 1000)
    samples.add(1000, 1000)
    assert samples.rates()[:2] == [(1.0, 500.0, 0.0), (2.0, 500.0, 0.0)]
    text = write_report(tmp_path, samples, {}, "equal").read_text("utf-8")
    assert "grey: 90 s for the mirror" in text
    assert "loaded" in text and "-93" not in text
