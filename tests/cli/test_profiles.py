"""Profiles: one name for a bucket, a user and the ways to it; and what comes before what."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.cli.profiles import completed, url_of
from headwater.errors import OptionError

NOWHERE = "127.0.0.1:1"
TEXT = """[profiles.production]
node = "db1.example,db2.example:11300"
bucket = "orders"
user = "ann"
password-file = "ann.password"
trust-store = "~/ca.pem"

[profiles.production.mirror]
to = "s3://lake/orders"

[mirror]
engine = "local"
to = "./lake"
"""


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of whoever runs the tests counts."""
    for name in ("NODE", "USER", "PASSWORD", "PASSWORD_FILE", "PROFILE", "CONFIG", "DATA"):
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ann.password").write_text("secret\n")
    (tmp_path / "ann.password").chmod(0o600)
    path = tmp_path / "all.toml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("table", "url"),
    [
        ({"node": "db1"}, "couchbase://db1:11210/default"),
        ({"node": "db1:7,db2", "bucket": "b"}, "couchbase://db1:7,db2:11210/b"),
        ({"node": "couchbase://db1/b"}, "couchbase://db1:11210/b"),
        ({"node": "db1", "tls": True}, "couchbases://db1:11207/default"),
        ({"node": "db1", "trust-store": "/a b.pem"}, "couchbases://db1:11207/default?trust_store=/a%20b.pem"),
        ({"node": "couchbases://db1/b?tls_verify=chain"}, "couchbases://db1:11207/b?tls_verify=chain"),
        (
            {"node": "db1", "client-certificate": "/c", "client-key": "/k", "tls-verify": "none"},
            "couchbases://db1:11207/default?client_certificate=/c&client_key=/k&tls_verify=none",
        ),
        ({"user": "ann"}, None),
    ],
)
def test_a_profile_makes_a_connection_string(table: dict[str, str | bool], url: str | None) -> None:
    assert url_of(table) == url


@pytest.mark.parametrize(
    ("table", "option"),
    [
        ({"node": "couchbase://db1", "tls": True}, "tls"),
        ({"node": "couchbases://db1", "tls": False}, "tls"),
        ({"node": "db1/a", "bucket": "b"}, "bucket"),
        ({"bucket": "b"}, "node"),
        ({"node": "http://db1"}, "connection"),
        ({"node": "db1", "client-key": "/k"}, "client_key"),
    ],
)
def test_a_profile_that_says_two_things_is_refused(table: dict[str, str | bool], option: str) -> None:
    with pytest.raises(OptionError) as refused:
        url_of(table)
    assert refused.value.name == option


def test_a_command_asks_whom_the_profile_names(node: testing.Node, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f'[profiles.here]\nnode = "{node.address}"\n[get]\nnode = "couchbase://{NOWHERE}/default"\n')
    named = ("--config", str(file))
    assert invoke(*named, "get", "profiled")[0] == 1
    assert invoke(*named, "--profile", "here", "set", "profiled", "1")[0] == 0
    assert invoke(*named, "--profile", "here", "get", "profiled") == (0, "1", "")
    assert invoke(*named, "--profile", "here", "cluster", "status")[2] != ""  # it is in no cluster, which the node says
    assert "connection refused" in invoke(*named, "--profile", "here", "get", "profiled", "--node", NOWHERE)[2]
    monkeypatch.setenv("HEADWATER_PROFILE", "here")
    assert invoke(*named, "get", "profiled") == (0, "1", "")
    monkeypatch.setenv("HEADWATER_NODE", f"couchbase://{NOWHERE}/default")
    assert invoke(*named, "get", "profiled")[2].startswith(f"headwater: {NOWHERE}: connection refused")


def test_who_names_a_profile_hears_of_a_variable_that_comes_before_it(
    node: testing.Node, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f'[profiles.there]\nnode = "{NOWHERE}"\n')
    monkeypatch.setenv("HEADWATER_NODE", node.url)
    typed = ("--config", str(file), "--profile", "there", "set", "profiled", "2")
    told = "headwater: HEADWATER_NODE of the environment: before what profile there says\n"
    assert invoke(*typed)[::2] == (0, told)
    assert invoke(*typed, "--quiet") == (0, "", "")
    monkeypatch.setenv("HEADWATER_PROFILE", "there")
    assert invoke("--config", str(file), "set", "profiled", "2")[::2] == (0, "")


def test_where_no_file_is_named_profiles_are_looked_for_at_home(node: testing.Node, tmp_path: Path) -> None:
    status, shown, problems = invoke("--profile", "here", "get", "k")
    assert (status, shown, problems.count("\n")) == (2, "", 1) and str(tmp_path / "xdg") in problems
    place = tmp_path / "xdg" / "headwater" / "config.toml"
    place.parent.mkdir(parents=True)
    place.write_text(f'[profiles.here]\nnode = "{node.address}"\n')
    assert invoke("--profile", "here", "set", "profiled", "3")[0] == 0
    assert completed("h", None) == ["here"] and completed("x", None) == []


def test_a_profile_that_is_not_there_is_refused_with_those_that_are(file: Path) -> None:
    status, shown, problems = invoke("--config", str(file), "--profile", "staging", "get", "k")
    assert (status, shown) == (2, "")
    assert problems == f'headwater: option "profile": "staging" is not a profile of {file}, which has production\n'


def test_a_node_has_no_profile_but_takes_a_file_that_is_named_before_the_command(file: Path) -> None:
    assert "not for serve" in invoke("--config", str(file), "--profile", "production", "serve")[2]
    file.write_text("vbuckets = 5\n")
    assert "power of two" in invoke("--config", str(file), "serve")[2]


def test_it_is_shown_what_comes_from_where(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*words: str) -> dict[str, tuple[object, str]]:
        status, told, problems = invoke("--config", str(file), *words, "--json")
        assert status == 0, problems
        return {name: (each["value"], each["from"]) for name, each in json.loads(told).items()}

    monkeypatch.setenv("HEADWATER_USER", "bea")
    own, home = f"profile production, {file}", file.parent / "home"
    url = f"couchbases://db1.example:11207,db2.example:11300/orders?trust_store={home}/ca.pem"
    assert shown("--profile", "production", "config", "show") == {
        "node": (url, f"{own}:2"),
        "user": ("bea", "HEADWATER_USER"),
        "password-file": (str(file.parent / "ann.password"), f"{own}:5"),
    }
    told = shown("--profile", "production", "config", "show", "--for", "mirror")
    assert told["url"] == (url, f"{own}:2")
    assert told["to"] == ("s3://lake/orders", f"{own}:9")
    assert told["engine"] == ("local", f"{file}:12")
    assert told["once"] == (False, "default")
    assert shown("config", "show", "--for", "mirror", "--changed") == {
        "engine": ("local", f"{file}:12"),
        "to": ("./lake", f"{file}:13"),
        "user": ("bea", "HEADWATER_USER"),
    }
    assert "no-such" in invoke("config", "show", "--for", "no-such")[2]


def test_what_is_wrong_in_a_profile_is_named_with_its_line(file: Path) -> None:
    assert invoke("config", "check", str(file))[0] == 0
    text = TEXT.replace('user = "ann"', 'user = 7\npasswort = "x"').replace('to = "s3', 'too = "s3')
    file.write_text(text + '\n[profiles.local]\nbucket = "b"\n[profiles.other]\nnode = "a/b"\nbucket = "c"\n')
    status, shown, problems = invoke("config", "check", str(file))
    assert status == 1 and problems.endswith("5 faults\n")
    places = [line.removeprefix(f"{file}:").split(": ")[:2] for line in shown.splitlines()]
    assert places == [
        ["4", "profiles.production.user"],
        ["5", "profiles.production.passwort"],
        ["10", "profiles.production.mirror.too"],
        ["16", "profiles.local"],
        ["20", "profiles.other.bucket"],
    ]
    assert "profiles.production.user" in invoke("--config", str(file), "get", "k")[2]
    (file.parent / "ann.password").chmod(0o644)
    file.write_text(TEXT)
    assert "chmod 600" in invoke("config", "check", str(file))[1]
    assert invoke("config", "check", str(file), "--skip-files")[0] == 0


def test_a_password_comes_from_what_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, right = tmp_path / "users", tmp_path / "right"
    users.write_text("ann:right\n")
    right.write_text("right\n")
    for each in (users, right):
        each.chmod(0o600)
    file = tmp_path / "all.toml"
    with testing.node(vbuckets=2, users_file=users) as node:
        file.write_text(f'[profiles.here]\nnode = "{node.address}"\nuser = "ann"\npassword-file = "right"\n')
        typed = ("--config", str(file), "--profile", "here")
        assert invoke(*typed, "set", "k", "1")[0] == 0
        assert invoke(*typed, "user", "list")[0] in (0, 1) and "AUTH_ERROR" not in invoke(*typed, "user", "list")[2]
        assert "AUTH_ERROR" in invoke(*typed, "get", "k", "--password", "wrong")[2]
        monkeypatch.setenv("HEADWATER_PASSWORD", "wrong")
        assert "AUTH_ERROR" in invoke(*typed, "get", "k")[2]
        assert "AUTH_ERROR" in invoke(*typed, "user", "list")[2]
        assert invoke(*typed, "get", "k", "--password-file", str(right))[0] == 0
        told = invoke(*typed, "user", "list", "--data", str(tmp_path / "store"))
        assert "no users were added here" in told[2] and str(tmp_path / "store") in told[2]
