"""Faults of a file of settings, each with its line; and where each setting comes from."""

import tomllib
from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.node.config import OPTIONS
from headwater.node.config_check import Fault, faults_of, key_lines, settings


def told(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.key) for fault in faults_of(text)]


def test_every_fault_is_named_with_its_line_not_only_the_first() -> None:
    text = '# a node\nprot = 1\nvbuckets = 3\n\nbucket = 7\nlog-level = "loud"\nport = 1\nscrub_mib_per_second = 0\n'
    assert told(text) == [(2, "prot"), (3, "vbuckets"), (5, "bucket"), (6, "log-level"), (8, "scrub_mib_per_second")]
    assert faults_of(text)[0] == Fault(2, "prot", "not an option of serve; port is one")
    assert "a power of two" in faults_of(text)[1].message


def test_a_combination_that_cannot_be_is_named_where_it_is_written() -> None:
    assert told('port = 1\ntls-clients = "required"\n') == [(2, "tls-clients")]
    # The default of what a connection may hold fits memory-mib; what the file says of it does not.
    assert told("port = 1\nconnection-memory-mib = 4096\n") == [(2, "connection-memory-mib")]
    assert told('http-port = 0\nwithout-tls = "nobody"\ntls-certificate = "none.pem"\n')[0] == (1, "http-port")


def test_a_file_that_is_missing_is_named_unless_it_is_elsewhere(tmp_path: Path) -> None:
    text = f'users-file = "{tmp_path}/users"\n'
    assert told(text) == [(1, "users-file")]
    assert faults_of(text, with_files=False) == []
    text = f'port = 1\ntls-certificate = "{tmp_path}/n1.pem"\ntls-key = "{tmp_path}/n1.key"\n'
    assert told(text) == [(2, "tls-certificate"), (3, "tls-key")]
    assert faults_of(text, with_files=False) == []


def test_a_user_needs_a_password_from_somewhere_which_is_not_the_files_matter() -> None:
    assert told('user = "ann"\n') == []


def test_what_is_no_toml_is_told_by_its_line() -> None:
    assert [(line, "not TOML" in message) for line, _, message in faults_of("port = 1\nvbuckets = \n")] == [(2, True)]
    assert told("port = 1\nport = 2\n") == [(2, "")]


def test_keys_have_the_lines_they_begin_on_also_in_tables_and_behind_long_texts() -> None:
    text = 'a = """\nb = 1\n"""\nb = 2\n[t]\n# c = 0\nc = [\n 1,\n]\n[t.u]\nd = 1\n'
    assert key_lines(text) == {("a",): 1, ("b",): 4, ("t",): 5, ("t", "c"): 7, ("t", "u"): 10, ("t", "u", "d"): 11}


def test_key_lines_of_what_is_no_toml_is_an_error() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        key_lines("a = \n")


def test_tables_of_commands_are_none_of_the_nodes_business() -> None:
    assert told('[mirror]\nengine = "local"\n[mirrors]\n[port]\n[serve]\n') == [(4, "port"), (5, "serve")]


def test_each_setting_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("# ours\nvbuckets = 64\nport = 7\n")
    found = {
        setting.option.name: (setting.value, setting.origin) for setting in settings(file, {"HEADWATER_PORT": "8"})
    }
    assert found["vbuckets"] == (64, f"{file}:2")
    assert found["port"] == (8, "HEADWATER_PORT")
    assert found["bucket"] == ("default", "default")
    assert set(found) == {option.name for option in OPTIONS} - {"config"}
    assert settings(None, {"HEADWATER_CONFIG": str(file)})[1].origin == f"{file}:3"


def test_settings_that_cannot_be_are_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("vbuckets = 3\n")
    with pytest.raises(OptionError, match="power of two"):
        settings(file, {})


def test_tables_in_lists_and_in_lines_have_their_lines_too() -> None:
    text = "[[t]]\na = 1\n\n[[t]]\nb = { c = 1 }\n"
    assert key_lines(text) == {("t",): 1, ("t", "a"): 2, ("t", "b"): 5, ("t", "b", "c"): 5}
