"""Settings: one table, and what it refuses."""

from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.node.config import OPTIONS, NodeConfig, config_from, parse_arguments, read_users


def test_every_option_has_its_place_and_the_same_default() -> None:
    defaults = NodeConfig()
    for option in OPTIONS:
        if option.field not in ("user", "password_file", "users_file"):
            found = getattr(defaults, option.field)
            assert (str(found) if option.field == "data" else found) == option.default


def test_arguments_come_as_pairs_or_with_an_equals_sign() -> None:
    assert parse_arguments(["--port", "0", "--vbucket-state=none"]) == {"port": 0, "vbucket_state": "none"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--prot", "1"], "--prot"),
        (["--port"], "a value must follow"),
        (["--port", "many"], "whole number"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_arguments(arguments)


@pytest.mark.parametrize(
    "values",
    [
        {"vbuckets": 0},
        {"vbuckets": 3},
        {"vbuckets": 2048},
        {"port": 70000},
        {"bucket": "a b"},
        {"vbucket_state": "replica"},
        {"segment_mib": 0},
        {"connections_max": 0},
    ],
)
def test_impossible_values_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        config_from(values, {})


def test_a_user_needs_a_password(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="password-file"):
        config_from({"user": "u"}, {})
    assert config_from({"user": "u"}, {"HEADWATER_PASSWORD": "p"}).users == {"u": "p"}
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o600)
    assert config_from({"user": "u", "password_file": str(file)}, {}).users == {"u": "secret"}


def test_a_password_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("u:p\n")
    file.chmod(0o644)
    with pytest.raises(OptionError, match="chmod 600"):
        read_users(file)


def test_users_are_lines_of_name_and_password(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# people\nann:a:b\n\nbob:\n")
    file.chmod(0o600)
    assert read_users(file) == {"ann": "a:b", "bob": ""}
    file.write_text("nobody\n")
    with pytest.raises(OptionError, match="name:password"):
        read_users(file)
