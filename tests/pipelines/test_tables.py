from pathlib import Path

import pytest

from headwater.errors import TableError
from headwater.pipelines.tables import open_table


def test_a_folder_without_a_table_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no table here"):
        open_table(str(tmp_path / "nothing"))
