"""Settings: one table, and what it refuses."""

from dataclasses import fields
from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.node.config import OPTIONS, NodeConfig, config_from, parse_arguments, read_users, store_folder


def test_every_setting_but_the_users_is_an_option_with_its_default() -> None:
    defaults = NodeConfig()
    options = {option.field: option for option in OPTIONS}
    for field in fields(NodeConfig):
        if field.name not in ("users", "group_secret"):
            option = options.pop(field.name)
            assert option.kind(getattr(defaults, field.name)) == option.default and option.about
    assert set(options) == {"config", "user", "password_file", "users_file", "cluster_secret_file"}


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('port = 1\nvbuckets = 2\nsegment-mib = 64\nbucket = "b"\ndata = "here"\n')
    environment = {"HEADWATER_CONFIG": str(file), "HEADWATER_PORT": "3", "HEADWATER_VBUCKETS": "4"}
    made = config_from({"port": 5}, environment)
    assert (made.port, made.vbuckets, made.segment_mib, made.bucket, made.data) == (5, 4, 64, "b", Path("here"))
    assert made.connections_max == NodeConfig.__dataclass_fields__["connections_max"].default


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", '"prot": 1 is not an option of serve'),
        ('port = "1"', '"port": "1" is not a whole number'),
        ("port = true", '"port": True is not a whole number'),
        ("bucket = 1", '"bucket": 1 is not a text'),
        ("port = ", "is not TOML"),
        ('config = "other.toml"', "is not an option of serve"),
        ("vbuckets = 3", "power of two"),
    ],
)
def test_a_file_with_something_wrong_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=complaint):
        config_from({"config": str(file)}, {})
    with pytest.raises(OptionError, match="can be read"):
        config_from({"config": str(file) + ".gone"}, {})


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(OptionError, match='"port": "many" is not a whole number'):
        config_from({}, {"HEADWATER_PORT": "many"})


@pytest.mark.parametrize("text", ["", "# nobody yet\n\n"])
def test_a_file_that_names_no_user_is_refused_and_nobody_is_let_in(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(OptionError, match="names nobody"):
        config_from({"users_file": str(file)}, {})


def test_a_password_for_nobody_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")
    file.chmod(0o600)
    with pytest.raises(OptionError, match="give --user"):
        config_from({"password_file": str(file)}, {})
    with pytest.raises(OptionError, match="give --user"):
        config_from({}, {"HEADWATER_PASSWORD": "secret"})
    with pytest.raises(OptionError, match="the password is empty"):
        config_from({"user": "ann", "password_file": str(file)}, {})


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
        {"vbuckets": -1},
        {"vbuckets": 3},
        {"vbuckets": 2048},
        {"port": 70000},
        {"bucket": "a b"},
        {"vbucket_state": "replica"},
        {"segment_mib": 0},
        {"connections_max": 0},
        {"log_level": "loud"},
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


def test_a_credential_of_systemd_may_show_bits_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An access list lets the service's user read it, whose mask stands in the place of the group."""
    file = tmp_path / "users"
    file.write_text("u:p\n")
    file.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "others"))
    with pytest.raises(OptionError, match="chmod 600"):
        read_users(file)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_users(file) == {"u": "p"}
    file.chmod(0o444)
    with pytest.raises(OptionError, match="chmod 600"):
        read_users(file)


def test_a_file_of_passwords_that_can_not_be_read_is_named_with_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"u:\xff\n")
    file.chmod(0o600)
    with pytest.raises(OptionError, match=r'"users-file".* not a file that can be read .it is no text.'):
        read_users(file)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    with pytest.raises(OptionError, match=r'"password-file".* not a file that can be read .Is a directory.'):
        config_from({"user": "u", "password_file": str(folder)}, {})

    def denied(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)  # these tests may run as root, whom nothing is denied
    with pytest.raises(OptionError, match=r'"users-file".* not a file that this user \(\d+\) may read; chown it'):
        read_users(file)


def test_users_are_lines_of_name_and_password(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# people\nann:a:b\n\nbob:\n")
    file.chmod(0o600)
    assert read_users(file) == {"ann": "a:b", "bob": ""}
    file.write_text("nobody\n")
    with pytest.raises(OptionError, match="name:password"):
        read_users(file)


def test_a_switch_is_on_when_it_is_named_and_reads_words_elsewhere(tmp_path: Path) -> None:
    assert parse_arguments(["--insecure", "--port", "1"]) == {"insecure": True, "port": 1}
    assert parse_arguments(["--insecure=false"]) == {"insecure": False}
    assert config_from({}, {"HEADWATER_INSECURE": "yes"}).insecure
    file = tmp_path / "node.toml"
    file.write_text("insecure = true\n")
    assert config_from({"config": str(file)}, {}).insecure and not config_from({}, {}).insecure
    with pytest.raises(OptionError, match="a truth value"):
        parse_arguments(["--insecure=perhaps"])


def test_passwords_are_heard_from_the_same_machine_or_from_anywhere() -> None:
    with pytest.raises(OptionError, match="loopback or anywhere"):
        config_from({"plain": "nowhere"}, {})


def test_the_roles_of_users_from_the_command_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("told\n")
    secret.chmod(0o600)
    users = tmp_path / "users"
    users.write_text("ann:a\nbob:b\n")
    users.chmod(0o600)
    config = config_from({"users_file": str(users), "cluster_secret_file": str(secret)}, {})
    told = {name: ",".join(map(str, grants)) for name, grants in config.roles.items()}
    assert told == {"ann": "administer", "bob": "read,write,stream,monitor", "@cluster": "replicate,monitor"}


def test_a_secret_of_the_cluster_goes_with_users_of_the_folder_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("told\n")
    secret.chmod(0o600)
    options = {"data": str(tmp_path), "cluster_secret_file": str(secret)}
    with pytest.raises(OptionError, match="for nodes with users"):
        config_from(options, {})
    (tmp_path / "USERS").touch()
    assert config_from(options, {}).account == ("@cluster", "told")


@pytest.mark.parametrize("place", ["s3://lake/store", "gs://lake/store", "abfss://c@a/store"])
def test_a_store_is_a_folder_of_this_machine(place: str, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'data = "{place}"\n')
    for given, environment in (({"data": place}, {}), ({}, {"HEADWATER_DATA": place}), ({"config": file}, {})):
        with pytest.raises(OptionError, match=f"disk of this machine.* headwater backup create {place}"):
            config_from(given, environment)
    with pytest.raises(OptionError, match=place):
        store_folder(str(Path(place)))
    assert config_from({"data": "./s3"}, {}).data == Path("s3")


def test_durations_and_sizes_are_texts_with_a_unit_wherever_a_node_asks_for_one(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('idle_seconds = "6m"\nsegment-mib = "1GiB"\nlogin_seconds = 20\n')
    environment = {"HEADWATER_PURGE_AGE_SECONDS": "2d", "HEADWATER_LOOP_WATCH_MS": "2s"}
    config = config_from({"config": str(file), "scrub-interval-seconds": "12h"}, environment)
    assert (config.idle_seconds, config.segment_mib, config.login_seconds) == (360, 1024, 20)
    assert (config.purge_age_seconds, config.loop_watch_ms, config.scrub_interval_seconds) == (172_800, 2000, 43_200)


@pytest.mark.parametrize("text", ["6 minutes", "-1s", "0.5s", "1MiB", "nan", "inf", ""])
def test_a_duration_that_is_none_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(OptionError, match=r'"idle-seconds": ".*" is not a number of seconds, 0 or more'):
        config_from({}, {"HEADWATER_IDLE_SECONDS": text})
