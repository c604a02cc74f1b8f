"""Progress is printed as text, as JSON or not at all; a problem goes to stderr."""

import json

import pytest

from headwater.cli.reporting import ProgressFormat, reporter
from headwater.pipelines.copy import CopyProgress

WELL, ILL = CopyProgress(batches=3), CopyProgress(batches=3, problem="node: reset")


def line(progress: CopyProgress) -> str:
    return f"batch {progress.batches}"


@pytest.mark.parametrize(
    ("shown", "progress", "out", "err"),
    [
        (ProgressFormat.TEXT, WELL, "batch 3\n", ""),
        (ProgressFormat.TEXT, ILL, "", "headwater: node: reset; trying again\n"),
        (ProgressFormat.JSON, ILL, json.dumps(ILL.to_json()) + "\n", ""),
        (ProgressFormat.NONE, WELL, "", ""),
        (ProgressFormat.NONE, ILL, "", ""),
    ],
)
def test_progress_is_printed_as_it_was_asked_for(
    shown: ProgressFormat, progress: CopyProgress, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter(shown, line)(progress)
    assert capsys.readouterr() == (out, err)
