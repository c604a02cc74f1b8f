"""The page the demo leaves behind: one HTML file with the counts and two drawings, throughput and lag, inside it."""

import html
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.cli.demo.samples import Samples

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>headwater demo</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222 }}
td {{ padding: .1rem 1.5rem .1rem 0 }} td:last-child {{ text-align: right; font-variant-numeric: tabular-nums }}
.drawing {{ overflow-x: auto }} svg {{ width: 100%; min-width: 44rem; height: auto }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181a1b; color: #ddd }} svg {{ background: #fff }} }}
</style></head><body>
<h1>headwater demo: {verdict}</h1>
<table>{rows}</table>
<div class="drawing">{drawing}</div>
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
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _drawing(samples: Samples) -> str:
    """Return both drawings as one SVG text."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, (rate, lag) = plt.subplots(2, 1, figsize=(10, 6.4), sharex=True, layout="constrained")
    _throughput(rate, samples)
    _lag(lag, samples)
    for axes in (rate, lag):
        _marks(axes, samples)
        axes.set_xlim(0, samples.drawn(samples.rows[-1].seconds))
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]


def _throughput(axes: Any, samples: Samples) -> None:
    rates = samples.rates()
    seconds = [samples.drawn(row[0]) for row in rates]
    axes.step(seconds, [row[1] for row in rates], label="made durable by the node", color="#1f77b4")
    axes.step(seconds, [row[2] for row in rates], label="merged into the table", color="#d62728")
    axes.set_yscale("symlog", linthresh=100)  # from 0, which a logarithm has not, and still both the load and a round
    axes.set_ylim(bottom=0)
    axes.set(ylabel="changes/s", title="throughput")
    axes.legend(loc="lower right")


def _lag(axes: Any, samples: Samples) -> None:
    lags = samples.lag_seconds()
    axes.fill_between([samples.drawn(row[0]) for row in lags], [row[1] for row in lags], color="#d62728", alpha=0.3)
    axes.set_ylim(bottom=0)
    title = "lag of the table behind the node, once it was level for the first time"
    axes.set(ylabel="seconds", xlabel="seconds since the load began" + _left_out_text(samples), title=title)


def _left_out_text(samples: Samples) -> str:
    if samples.waited is None:
        return ""
    began, ended = samples.waited
    return f"; grey: {ended - began:,.0f} s for the mirror's start and its first batch, drawn as one"


def _marks(axes: Any, samples: Samples) -> None:
    """Draw a line for each mark, its text inside of the frame, and the wait for the mirror as a grey band."""
    for at, text in samples.marks:
        axes.axvline(samples.drawn(at), color="#888", linestyle=":")
        inside = {"rotation": 90, "va": "top", "ha": "right", "fontsize": 9}
        axes.text(samples.drawn(at), 0.97, text, transform=axes.get_xaxis_transform(), **inside)
    if samples.waited is not None:
        axes.axvspan(*(samples.drawn(at) for at in samples.waited), color="#ccc", alpha=0.6)
