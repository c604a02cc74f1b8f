"""The forms of what a command says: every command has them, and they are what they promise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.cli.forms import FORMS, Forms, forms
from tests.cli.cluster.command_lines import MEMBERS
from tests.cli.support import Run

EXCEPTIONS = {
    ("serve", "--json"): "its table of options has --log-format json",
    ("serve", "--quiet"): "its table of options has --log-level error",
    ("mirror", "--json"): "an old name of --unfold, which goes on to mean that; lines of JSON are --progress json",
    ("serve", "--verbose"): "its table of options has --log-level info, by module",
}
CHANGES_LITTLE = {
    "set": "one document",
    "delete": "one document",
    "bucket create": "an empty bucket, beside those there are",
    "bucket quota": "a number, set back by the same; never below what is there",
    "bucket history": "two numbers, set back by the same; what a shorter one leaves out goes with a later compaction",
    "collection create": "what is there stays as it is",
    "collection alter": "one word, set back by the same; readers are told from which change on it holds",
    "user add": "one user",
    "user roles": "one user; refuses to leave nobody who may do everything",
    "user password": "one user",
    "user remove": "one user; refuses to leave nobody who may do everything",
    "tls ca": "never over a CA that is there",
    "tls node": "two new files",
    "tls user": "two new files",
    "cluster tls": "one flag of the map, taken back by --off",
    "backup create": "adds a backup, changes none",
    "serve": "a node",
    "console": "asks before each change, with the plan",
    "demo": "nodes of its own in a folder of its own",
    "mirror": "a table of its own, made if missing; it goes on where that stands",
    "index": "an index of its own, made if missing",
    "observe": "counts, in a folder of its own",
    "copy": "the newer version wins, so nothing newer is lost",
    "invalidate": "deletes what a cache can fetch again",
    "publish": "a topic of its own, made if missing; it goes on where that is",
}
READS = {
    *(
        "get",
        "tail",
        "tap",
        "seqnos",
        "failover-log",
        "streams",
        "search",
        "lake describe",
        "lake verify",
        "backup list",
    ),
    *("backup verify", "bucket list", "collection list", "user list", "tls show", "cluster status"),
    *("config check", "config show"),
}


def commands(group: Any = None, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


ALL = dict(commands())


def options(name: str) -> set[str]:
    return {text for param in ALL[name].params if not param.hidden for text in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_the_forms_or_a_reason(name: str) -> None:
    missing = {option for option, _, _ in FORMS.values()} - options(name)
    assert missing == {option for command, option in EXCEPTIONS if command == name}


@pytest.mark.parametrize("name", ALL)
def test_no_option_of_a_command_is_there_twice(name: str) -> None:
    names = [text for param in ALL[name].params for text in (*param.opts, *param.secondary_opts)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", ALL)
def test_every_command_that_changes_much_can_be_tried_out(name: str) -> None:
    reasons = (name in READS) + (name in CHANGES_LITTLE) + ("--dry-run" in options(name))
    assert reasons == 1, f"{name}: --dry-run, or one reason why there is none"


ONE = {  # a command line for each that needs no cluster, in an order in which each finds what it needs
    "set": ("set", "form", "1"),
    "get": ("get", "form"),
    "seqnos": ("seqnos",),
    "failover-log": ("failover-log", "0"),
    "streams": ("streams",),
    "load": ("load", "{rows}", "--key", "id"),
    "load --dry-run": ("load", "{rows}", "--key", "id", "--dry-run"),
    "export": ("export", "{place}/export.csv"),
    "export --dry-run": ("export", "{place}/tried.csv", "--dry-run"),
    "delete": ("delete", "form"),
    "tail": ("tail", "--once"),
    "tap": ("tap", "--dump"),
    "collection create": ("collection", "create", "forms.one"),
    "collection alter": ("collection", "alter", "forms.one", "--history", "off"),
    "collection list": ("collection", "list"),
    "bucket create": ("bucket", "create", "forms", "--vbuckets", "4"),
    "bucket list": ("bucket", "list"),
    "bucket quota": ("bucket", "quota", "forms", "100"),
    "bucket history": ("bucket", "history", "forms", "--seconds", "1h"),
    "bucket drop --dry-run": ("bucket", "drop", "forms", "--dry-run"),
    "bucket drop": ("bucket", "drop", "forms", "--yes"),
    "collection drop --dry-run": ("collection", "drop", "forms", "--dry-run"),
    "collection drop": ("collection", "drop", "forms", "--yes"),
    "backup create": ("backup", "create", "{place}/backups", "--default-collection-only"),
    "backup list": ("backup", "list", "{place}/backups"),
    "backup verify": ("backup", "verify", "{place}/backups"),
    "backup restore --dry-run": ("backup", "restore", "{place}/backups", "--dry-run"),
    "backup restore": ("backup", "restore", "{place}/backups"),
    "backup prune": ("backup", "prune", "{place}/backups", "--keep", "1"),
    "mirror": ("mirror", "{url}", "--to", "{place}/table", "--engine", "local", "--once", "--progress", "json"),
    "lake describe": ("lake", "describe", "{place}/table"),
    "lake verify": ("lake", "verify", "{place}/table"),
    "lake optimize --dry-run": ("lake", "optimize", "{place}/table", "--dry-run", "--all"),
    "lake optimize": ("lake", "optimize", "{place}/table", "--all"),
    "lake repair --dry-run": ("lake", "repair", "{place}/table", "--dry-run"),
    "lake repair": ("lake", "repair", "{place}/table"),
    "lake vacuum --dry-run": ("lake", "vacuum", "{place}/table", "--dry-run"),
    "lake vacuum": ("lake", "vacuum", "{place}/table"),
    "index": ("index", "{url}", "{place}/index", "--engine", "local", "--once"),
    "search": ("search", "{place}/index", "wine"),
    "observe": ("observe", "{url}", "--engine", "local", "--once"),
    "user add": ("user", "add", "ann", "--roles", "administer", "--data", "{place}"),
    "user list": ("user", "list", "--data", "{place}"),
    "user roles": ("user", "roles", "ann", "administer", "--data", "{place}"),
    "user password": ("user", "password", "ann", "--data", "{place}"),
    "user remove": ("user", "remove", "ann", "--force", "--data", "{place}"),
    "tls ca": ("tls", "ca", "--dir", "{place}/tls"),
    "tls node": ("tls", "node", "n1", "--host", "n1.example", "--dir", "{place}/tls"),
    "tls user": ("tls", "user", "ann", "--dir", "{place}/tls"),
    "tls show": ("tls", "show", "{place}/tls/n1.pem"),
    "config check": ("config", "check", "{settings}"),
    "config show": ("config", "show", "{settings}"),
    "move --dry-run": ("move", "--from", "{address}", "--to", "{other}", "--dry-run"),
    "move": ("move", "--from", "{address}", "--to", "{other}", "--vbuckets", "0"),
    "replicate --dry-run": ("replicate", "{address}", "{other}", "--dry-run"),
    "replicate": ("replicate", "{address}", "{other}", "--once"),
    "failover --dry-run": ("failover", "{other}", "--from", "{address}", "--force", "--dry-run"),
    "transition --dry-run": (
        *("transition", "--from", "{address}", "--to", "{other}", "--journal", "{place}/journal"),
        *("--engine", "local", "--dry-run"),
    ),
}
ELSEWHERE = {
    "serve": "has other forms",
    "copy": "needs Spark; its --json is --progress json, tests/cli/test_copy.py",
    "invalidate": "needs Spark; the same",
    "publish": "needs Kafka; tests/pipelines/test_publish.py",
    "console": "runs until it is ended; tests/cli/test_console.py",
    "demo": "tests/cli/demo",
    "failover": "leaves the shared node without vbuckets; its dry run is here",
    "transition": "the same",
}
WITH_WORKERS = {"mirror", "lake", "index", "search", "observe"}
"""These start processes of their own, or need what those made: once is enough."""
PREVIEW = {name for name in ONE if "--dry-run" in name}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("forms")
    (place / "rows.jsonl").write_text('{"id": "a", "text": "red wine"}\n{"id": "b", "text": "white"}\n')
    (place / "node.toml").write_text("port = 11211\n[mirror]\nengine = 'local'\n")
    return place


@pytest.fixture(scope="module")
def other() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16, vbucket_state="none") as running:
        yield running


@pytest.fixture(scope="module")
def words(node: testing.Node, other: testing.Node, place: Path) -> dict[str, str]:
    files = {"rows": str(place / "rows.jsonl"), "settings": str(place / "node.toml"), "place": str(place)}
    return files | {"url": node.url, "address": str(node.address), "other": str(other.address)}


def test_every_command_is_tried_with_json_here_or_elsewhere() -> None:
    tried = {name.removesuffix(" --dry-run") for name in ONE if name.removesuffix(" --dry-run") not in ELSEWHERE}
    assert tried | set(ELSEWHERE) | {name.removesuffix(" --dry-run") for name in MEMBERS} == set(ALL)


def test_json_is_one_object_or_one_a_line_and_nothing_else_on_stdout(run: Run, words: dict[str, str]) -> None:
    for name, line in ONE.items():
        form = () if name == "mirror" else ("--json",)
        status, shown, problems = run(*(each.format(**words) for each in line), *form, stdin=b"secret\n")
        assert status == 0, f"{name}: {problems}"
        told = [json.loads(each) for each in shown.splitlines()]
        assert (told or name == "observe") and all(isinstance(each, dict | list) for each in told), f"{name}: {shown}"


@pytest.mark.parametrize("name", [name for name in ALL if name != "serve"])
def test_a_wrong_option_leaves_stdout_empty_where_json_is_wanted(name: str, run: Run) -> None:
    status, shown, problems = run(*name.split(), "--json", "--no-such-option")
    assert (status, shown) == (2, "") and problems.startswith("headwater: ")


def test_json_stays_json_when_the_work_fails_in_the_middle(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a"}\nthis is no row\n')
    (tmp_path / "wrong.toml").write_text("prot = 1\n")
    for line in (
        ("load", str(rows), "--key", "id"),
        ("config", "check", str(tmp_path / "wrong.toml")),
        ("search", str(tmp_path), "wine"),
        ("get", "nobody-has-this"),
        ("backup", "verify", str(tmp_path)),
        ("tls", "show", str(rows)),
    ):
        status, shown, problems = run(*line, "--json")
        assert status in (1, 2) and problems.startswith("headwater: "), line
        assert all(isinstance(json.loads(each), dict | list) for each in shown.splitlines()), f"{line}: {shown}"


def test_quiet_says_nothing_unless_it_was_asked_for(run: Run, words: dict[str, str], tmp_path: Path) -> None:
    words = words | {"place": str(tmp_path)}
    for name, line in ONE.items():
        if name.partition(" ")[0] in WITH_WORKERS:
            continue
        status, shown, problems = run(*(each.format(**words) for each in line), "--quiet", stdin=b"secret\n")
        assert (status, problems) == (0, ""), f"{name}: {problems}"
        asked = name in READS or name in PREVIEW - {"load --dry-run", "export --dry-run", "backup restore --dry-run"}
        assert bool(shown) == (asked and name != "lake verify" and name != "backup verify"), f"{name}: {shown!r}"


WITHOUT_NODE = (
    "lake",
    "search",
    "user",
    "tls",
    "config",
    "load --dry-run",
    "backup list",
    "backup verify",
    "backup prune",
)
"""These ask no node, or nothing of it."""
ASKING = {
    **{name: line for name, line in ONE.items() if not name.startswith(WITHOUT_NODE)},
    "copy": ("copy", "{url}", "{url}-copy", "--checkpoint", "{place}/copied", "--once"),
    "invalidate": ("invalidate", "{url}", "redis://{other}", "--checkpoint", "{place}/invalidated", "--once"),
    "publish": ("publish", "{url}", "--to", "kafka://{other}/changes", "--engine", "local", "--once"),
    "failover": ("failover", "{other}", "--from", "{address}", "--force"),
    "cluster init": ("cluster", "init", "{address}"),
    "cluster status": ("cluster", "status", "{address}"),
    "cluster rebalance": ("cluster", "rebalance", "{address}", "--add", "{other}", "--yes"),
    "cluster failover": ("cluster", "failover", "{address}", "--dead", "{other}", "--yes"),
    "cluster tls": ("cluster", "tls", "{address}", "--off"),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_node_that_is_not_there_is_told_in_one_line(name: str, run: Run, tmp_path: Path) -> None:
    """Most make one attempt, none goes on trying, and each says where to look."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a"}\n')
    words = {"rows": str(rows), "place": str(tmp_path), "other": "127.0.0.1:2", "address": "127.0.0.1:1"}
    words["url"] = f"couchbase://{words['address']}/default"
    line = [each.format(**words) for each in ASKING[name]]
    line += ["--node", words["url"]] if "--node" in options(name.removesuffix(" --dry-run")) else []
    status, shown, problems = run(*line, stdin=b"")
    assert (status, shown, problems.count("\n")) == (1, "", 1), f"{name}: {shown}{problems}"
    assert problems.startswith("headwater: ")
    as_json = ["--progress", "json"] if name == "mirror" else ["--json"]
    assert run(*line, *as_json, stdin=b"")[:2] == (1, ""), "the error is the line on stderr, also where JSON is wanted"
    if not name.startswith("backup restore"):  # which has no backup here to restore
        assert "127.0.0.1:" in problems and "connection refused" in problems
        assert any(step in problems for step in ("start one", "start it")), problems


def test_verbose_tells_of_the_connection_and_the_time_on_stderr(run: Run) -> None:
    plain, told = run("set", "form", "1"), run("set", "form", "1", "-v")
    assert plain[2] == "" and told[1].startswith("cas ")
    first, second, last = told[2].splitlines()
    assert first.startswith("headwater: headwater ") and "connected to 127.0.0.1:" in second and "took" in last


def test_an_error_has_its_traceback_with_two_v_only(run: Run) -> None:
    assert "Traceback" not in run("get", "nobody-has-this", "-v")[2]
    status, _, problems = run("get", "nobody-has-this", "-vv")
    assert status == 1 and "Traceback" in problems


@pytest.mark.parametrize("form", ["--json", "--quiet"])
def test_what_would_ask_says_that_it_needs_a_yes(run: Run, form: str) -> None:
    status, shown, problems = run("collection", "drop", "nothing", form)
    assert (status, shown) == (2, "") and "--yes" in problems


def test_the_forms_end_with_their_command() -> None:
    assert CliRunner().invoke(app, ["config", "show", "--json"]).exit_code == 0
    assert forms() == Forms()


@pytest.mark.parametrize("name", MEMBERS)
def test_json_of_commands_on_several_nodes(told: Any, name: str) -> None:
    make, line = MEMBERS[name]
    status, shown, problems = told(make(), *line, "--json")
    assert status == 0, problems
    assert isinstance(json.loads(shown), dict)
    status, shown, _ = told(make(), *line, "--quiet")
    assert (status, bool(shown)) == (0, name == "cluster init --dry-run")
