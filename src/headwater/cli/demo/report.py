"""The page the demo leaves behind: one HTML file with the counts and two drawings, throughput and lag, inside it."""

import html
import io
import json
from collections.abc import Mapping
from pathlib import Path

from headwater.cli.demo.samples import Samples

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>headwater demo</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222 }}
td {{ padding: .1rem 1.5rem .1rem 0 }} td:last-child {{ text-align: right; font-variant-numeric: tabular-nums }}
svg {{ width: 100%; height: auto }}
</style></head><body>
<h1>headwater demo: {verdict}</h1>
<table>{rows}</table>
{drawing}
</body></html>
"""


def write_report(folder: Path, samples: Samples, facts: Mapping[str, int | float | str], verdict: str) -> Path:
    """Write `report.html` and `summary.json` into `folder` (made if missing); return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{_number(value)}</td></tr>" for name, value in facts.items())
    page.write_text(_PAGE.format(verdict=html.escape(verdict), rows=rows, drawing=_drawing(samples)), "utf-8")
    (folder / "summary.json").write_text(json.dumps({"verdict": verdict, **facts}, indent=1) + "\n", "utf-8")
    return page


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return html.escape(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _drawing(samples: Samples) -> str:
    """Both drawings as one SVG text."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, (rate, lag) = plt.subplots(2, 1, figsize=(10, 6.4), sharex=True, layout="constrained")
    rates = samples.rates()
    seconds = [row[0] for row in rates]
    rate.step(seconds, [max(row[1], 1.0) for row in rates], label="changes made durable by the node", color="#1f77b4")
    rate.step(seconds, [max(row[2], 1.0) for row in rates], label="changes merged into the table", color="#d62728")
    rate.set(ylabel="changes/s", yscale="log", title="throughput")
    rate.legend(loc="upper right")
    lags = samples.lag_seconds()
    lag.fill_between([row[0] for row in lags], [row[1] for row in lags], color="#d62728", alpha=0.3)
    lag.set(ylabel="seconds", xlabel="seconds since the start", title="lag of the table behind the node")
    for at, text in samples.marks:
        for axes in (rate, lag):
            axes.axvline(at, color="#888", linestyle=":")
        lag.annotate(text, (at, lag.get_ylim()[1]), rotation=90, va="top", ha="right", fontsize=8)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    return drawn.getvalue().partition("<svg")[1] + drawn.getvalue().partition("<svg")[2]
