import json
from pathlib import Path

from tests.cli.support import Run


def test_a_loaded_file_is_stored_row_by_row(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,n\n" + "".join(f"k{number},{number}\n" for number in range(300)))
    status, told, _ = run("load", str(rows), "--key", "id", "--prefix", "row:")
    assert status == 0 and told.startswith("300 documents stored in ")
    assert json.loads(run("get", "row:k299")[1]) == {"id": "k299", "n": 299}


def test_a_file_that_is_broken_in_the_middle_is_told(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n{"n": 2}\n')
    status, _, told = run("load", str(rows), "--key", "id")
    assert status == 1 and f"{rows}, line 2: has no field 'id'" in told and told.count("\n") == 1
