"""Where `headwater user` changes users: a folder, or a node that runs."""

from __future__ import annotations

import json
from pathlib import Path

from headwater import testing
from tests.cluster.nodes import command


def private(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def test_a_node_that_runs_is_given_users_by_its_administrator(tmp_path: Path) -> None:
    root, new = private(tmp_path / "root", "r00t"), private(tmp_path / "new", "4nn")
    with testing.node(user="root", password_file=root, vbuckets=4) as node:
        where = ("--node", node.address, "--by", "root", "--by-password-file", root)
        nobody = command("user", "list", *where)
        assert nobody[0] == 1 and "no users were added here" in nobody[2]
        added = command("user", "add", "ann", "--roles", "read", "--password-file", new, *where)
        assert added == (0, "ann: read\n", "")
        with node.client("ann", "4nn") as client:
            assert client.map.vbuckets == 4
        assert command("user", "roles", "ann", "write", *where)[1] == "ann: write\n"
        assert json.loads(command("user", "list", "--json", *where)[1]) == {"users": {"ann": ["write"]}}
        wrong = command("user", "list", *where[:-1], new)
        assert wrong[0] == 1 and "Traceback" not in wrong[2]
        ann = ("--node", node.address, "--by", "ann", "--by-password-file", new)
        refused = command("user", "remove", "ann", "--force", *ann)
        assert refused[0] == 1 and "EACCESS" in refused[2] and "Traceback" not in refused[2]
        assert command("user", "remove", "ann", *where)[1] == "ann is removed; nobody is left, and nobody comes in\n"


def test_a_folder_needs_no_login(tmp_path: Path) -> None:
    file = private(tmp_path / "root", "r00t")
    told = command("user", "list", "--data", str(tmp_path), "--by-password-file", file)
    assert told[0] == 1 and "--by-password-file is for --node" in told[2]
