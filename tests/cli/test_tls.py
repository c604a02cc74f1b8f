"""`headwater tls`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.tls.certificates import read_pem


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["tls", *words])


def test_a_ca_signs_nodes_and_users_and_each_can_be_shown(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    assert run("ca", "--dir", folder, "--name", "orders").stdout.startswith(f"{folder}/ca.pem: give it to nodes")
    assert run("node", "n1", "--host", "n1.example", "--host", "10.0.0.1", "--dir", folder).exit_code == 0
    assert f"client_certificate={folder}/ann.pem" in run("user", "ann", "--dir", folder).stdout
    assert run("show", f"{folder}/n1.pem").stdout.startswith(
        '"CN=n1" by "CN=orders CA" (for n1.example, 10.0.0.1; valid'
    )
    before = (tmp_path / "tls" / "n1.pem").read_bytes()
    assert run("node", "n1", "--host", "n1.example", "--renew", "--dir", folder).exit_code == 0
    assert (tmp_path / "tls" / "n1.pem").read_bytes() != before


def test_a_certificate_is_renewed_by_its_name_alone(tmp_path: Path) -> None:
    folder, file = str(tmp_path / "tls"), tmp_path / "tls" / "n1.pem"
    run("ca", "--dir", folder)
    assert '"host": "" is not given' in run("node", "n1", "--dir", folder).stderr
    assert '"host": "" is not given' in run("node", "n1", "--renew", "--dir", folder).stderr, "there is none yet"
    assert run("node", "n1", "--host", "n1.example", "--host", "10.0.0.1", "--dir", folder).exit_code == 0
    before, key = file.read_bytes(), file.with_suffix(".key").read_bytes()
    told = run("node", "n1", "--host", "n1.example", "--dir", folder)
    assert told.exit_code == 2 and "it is there already; --renew puts another in its place" in told.stderr
    assert run("node", "n1", "--renew", "--days", "90", "--dir", folder).exit_code == 0
    found, old = read_pem(file.read_bytes()), read_pem(before)
    assert (found.dns_names, found.addresses) == (old.dns_names, old.addresses) == (("n1.example",), ("10.0.0.1",))
    assert found.ends < old.ends and file.with_suffix(".key").read_bytes() != key
    assert run("user", "ann", "--dir", folder).exit_code == 0
    assert "--renew" in run("user", "ann", "--dir", folder).stderr
    assert run("user", "ann", "--renew", "--dir", folder).exit_code == 0


def test_what_can_not_be_is_told_in_one_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    for words, told in (
        (("node", "n1", "--host", "a", "--dir", folder), "a folder with ca.pem and ca.key"),
        (("show", str(Path(__file__))), "a PEM file with a certificate"),
        (("user", "ca", "--dir", folder), "not that of the CA"),
        (("ca", "--dir", "s3://lake/tls"), "is not a folder of this machine"),
    ):
        ended = run(*words)
        assert (ended.exit_code, told in ended.stderr) == (2, True)


def test_a_ca_is_not_made_over_one_that_is_there(tmp_path: Path) -> None:
    assert [run("ca", "--dir", str(tmp_path)).exit_code for _ in range(2)] == [0, 2]
    told = run("ca", "--dir", str(tmp_path)).stderr
    assert told == f'headwater: option "dir": "{tmp_path}/ca.key" is not a new file: it is there already\n'
