"""Errors of a job in a real Jupyter kernel: one line first, the rest folded below it, and `%tb`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.battery]

START = """
from headwater.pipelines.session import local_session
spark = local_session("notebook", cores="local[1]", quiet=True, delta=False)
"""
FAIL = 'spark.read.format("dcp").option("retrySeconds", "1").load("couchbase://127.0.0.1:1/default").count()'
KERNEL = (
    '{"argv": ["%s", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "p", "language": "python"}'
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    (tmp_path / "kernels" / "here").mkdir(parents=True)
    (tmp_path / "kernels" / "here" / "kernel.json").write_text(KERNEL.replace("%s", sys.executable))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    def executed(*cells: str) -> list[list[Any]]:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(book, allow_errors=True, timeout=300, kernel_name="here").execute()
        return [[output for output in cell.outputs if output.output_type != "stream"] for cell in book.cells]

    return executed


@pytest.mark.filterwarnings("ignore")  # of asyncio's and Jupyter's own
def test_a_cell_that_fails_shows_one_line_and_has_the_rest_below_it(run: Any) -> None:
    _, failed, asked = run(START, FAIL, "%tb")
    shown, folded = failed
    assert len(shown.traceback) == 1
    assert shown.traceback[0].startswith("headwater: 127.0.0.1:1: connection refused; no node listens there")
    assert "headwater.errors.ConnectionLost: 127.0.0.1:1" in folded.data["text/html"]
    assert folded.data["text/html"].startswith("<details>")
    assert "PYTHON_DATA_SOURCE_ERROR" in "".join(asked[0].traceback)
