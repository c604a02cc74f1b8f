"""The files for running a node as a service: each is checked by the tool that will read it, where that can be had."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.node.config import OPTIONS
from headwater.node.config_check import faults_of
from headwater.node.rest.metrics import HISTOGRAM, METRICS

FOLDER = Path(__file__).parent.parent / "deploy"
UNIT, RULES = FOLDER / "systemd" / "headwater.service", FOLDER / "prometheus" / "headwater.rules.yml"
BOARD = FOLDER / "grafana" / "headwater.json"
METRIC = re.compile(r"\bheadwater_[a-z_]+")


def told() -> set[str]:
    """Each name that a node's page has."""
    names = {metric.full_name for metric in METRICS if metric.kind != HISTOGRAM}
    return names | {
        f"{metric.full_name}_{part}" for metric in METRICS if metric.kind == HISTOGRAM for part in ("bucket", "sum")
    }


def labels() -> set[str]:
    return {label for metric in METRICS for label in metric.labels} | {"instance", "job", "le"}


def test_the_unit_starts_with_options_that_there_are() -> None:
    (command,) = re.findall(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)
    named = set(re.findall(r" --([a-z-]+)", command))
    assert named and named <= {option.name for option in OPTIONS}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True, timeout=120, check=False
    )
    assert [line for line in done.stderr.splitlines() if "headwater" in line] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_a_job_by_the_clock() -> None:
    units = [FOLDER / "systemd" / f"headwater-mirror.{kind}" for kind in ("service", "timer")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=120, check=False
    )
    assert [line for line in done.stderr.splitlines() if "headwater" in line] == []


def test_a_job_has_the_user_and_the_folders_of_the_node() -> None:
    """A user without DynamicUser gets no state folder, and has systemd move the node's private ones."""
    node, job = (
        set(re.findall(r"^(?:DynamicUser|(?:State|Cache)Directory|UMask)=.+$", path.read_text(), re.MULTILINE))
        for path in (UNIT, FOLDER / "systemd" / "headwater-mirror.service")
    )
    assert len(node) == 4 and job == node


def test_the_tasks_of_airflow_are_commands_that_there_are() -> None:
    """Their words are those of the command line; Airflow itself, of a size of 600 MB, is not installed for it."""
    tree = ast.parse((FOLDER / "airflow" / "headwater_mirror.py").read_text())
    strings = [each for each in ast.walk(tree) if isinstance(each, ast.JoinedStr)]
    typed = [
        "".join(part.value if isinstance(part, ast.Constant) else "x" for part in string.values) for string in strings
    ]
    assert len(typed) == 2
    for line in typed:
        command, *options = shlex.split(line)[1:], *re.findall(r"--[a-z-]+", line)
        done = CliRunner().invoke(app, [*command[: command.index("x")], "--help"])
        assert done.exit_code == 0 and [name for name in options if name not in done.output] == []


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="logrotate is not installed")
def test_logrotate_copies_the_log_and_empties_it(tmp_path: Path) -> None:
    told = (FOLDER / "logrotate" / "headwater").read_text().replace("/var/log/headwater", str(tmp_path))
    (tmp_path / "conf").write_text(told)
    (tmp_path / "conf").chmod(0o644)
    tmp_path.chmod(0o755)
    with (tmp_path / "node.log").open("a", buffering=1) as log:
        log.write("before\n")
        words = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(tmp_path / "conf")]
        assert subprocess.run(words, timeout=60, check=False).returncode == 0
        log.write("after\n")
    assert (tmp_path / "node.log").read_text() == "after\n"
    assert (tmp_path / "node.log.1").read_text() == "before\n"


@pytest.mark.parametrize("path", [RULES, BOARD], ids=lambda path: path.name)
def test_what_is_looked_at_is_what_a_node_tells(path: Path) -> None:
    expressions = (
        [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]
        if path == BOARD
        else re.findall(r"^ +expr: (.+)$", path.read_text(), re.MULTILINE)
    )
    named = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(named) > 8 and named <= told()
    by = {
        label.strip()
        for expression in expressions
        for found in re.findall(r"by \(([^)]*)\)", expression)
        for label in found.split(",")
    }
    assert by <= labels()


def test_the_panels_of_the_board_do_not_lie_on_each_other() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    for words in (["check", "rules", RULES.name], ["test", "rules", "tests.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


CONTAINER, KUBERNETES = FOLDER / "container", FOLDER / "kubernetes"
VARIABLES = {option.variable for option in OPTIONS} | {"HEADWATER_CACHE", "HEADWATER_PASSWORD"}


def documents() -> dict[str, Any]:
    """Each object of the manifests, by its kind and name."""
    found = {}
    for path in KUBERNETES.glob("*.yaml"):
        for each in yaml.safe_load_all(path.read_text("utf-8")):
            if path.name != "kustomization.yaml":
                found[f"{each['kind']}/{each['metadata']['name']}"] = each
    return found


def test_containers_are_given_options_that_there_are() -> None:
    for path in (CONTAINER / "Containerfile", CONTAINER / "compose.yaml", KUBERNETES / "statefulset.yaml"):
        named = set(re.findall(r"\bHEADWATER_[A-Z_]+", path.read_text("utf-8")))
        assert named and named <= VARIABLES, path


def test_a_container_is_not_root_and_has_a_health_check() -> None:
    lines = (CONTAINER / "Containerfile").read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert sum(line.startswith("FROM ") for line in lines) == 2


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing_in_the_containerfile() -> None:
    done = subprocess.run(
        ["hadolint", CONTAINER / "Containerfile"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_compose_mounts_and_waits_for_is_there() -> None:
    told = yaml.safe_load((CONTAINER / "compose.yaml").read_text("utf-8"))
    for name, service in told["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (CONTAINER / source).exists() if source.startswith(".") else source in told["volumes"], volume
        assert set(service.get("depends_on", ())) <= set(told["services"]), name
        assert set(service.get("secrets", ())) <= set(told["secrets"]), name
    # Files: podman-compose refuses secrets of the environment.
    assert all(set(each) == {"file"} for each in told["secrets"].values())
    # Cut off while nodes are busy with their first start, the founding of the cluster has to go on.
    assert told["services"]["cluster"]["restart"] == "on-failure"
    nodes = {name for name, service in told["services"].items() if service.get("hostname") == name}
    scraped = yaml.safe_load((CONTAINER / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["job_name"] == "headwater", "the alerts look at this job"
    assert {target.split(":")[0] for target in scraped["static_configs"][0]["targets"]} == nodes
    assert nodes == set(re.findall(r"node\d", " ".join(told["services"]["cluster"]["command"])))


def test_the_settings_of_the_pods_are_well() -> None:
    text = (KUBERNETES / "node.toml").read_text("utf-8")
    assert faults_of(text, with_files=False) == []


def test_the_manifests_name_each_other() -> None:
    found = documents()
    pod = found["StatefulSet/headwater"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet"):
        selector = found[f"{kind}/headwater"]["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items(), kind
    assert found["StatefulSet/headwater"]["spec"]["serviceName"] in {each.partition("/")[2] for each in found}
    node = pod["spec"]["containers"][0]
    ports = {each["name"] for each in node["ports"]}
    assert {node[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")} <= ports
    volumes = {each["name"] for each in pod["spec"]["volumes"]} | {"store"}
    job = found["Job/headwater-cluster"]["spec"]
    assert job["ttlSecondsAfterFinished"] > 0, (
        "a job's template can't be changed: one that stays refuses the next release"
    )
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    namespace, service = (found[f"{kind}/headwater"]["metadata"]["name"] for kind in ("Namespace", "Service"))
    named = re.findall(r"headwater-\d\S*(?=:11210)", " ".join(job["template"]["spec"]["containers"][0]["args"]))
    assert {each.split(".", 1)[1] for each in named} == {f"{service}.{namespace}.svc"}, (
        "as clients of any namespace ask"
    )
    for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["readOnlyRootFilesystem"]
    told = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*told["resources"], "kustomization.yaml"}


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_the_manifests_fit_the_published_schemas(version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for document in documents().values():
        schemas.validate(document, version, strict=True)


def test_the_number_of_nodes_stands_beside_the_release_where_an_apply_takes_both_from() -> None:
    """`kubectl scale` is undone by the next `kubectl apply`, and a node goes with its vbuckets."""
    told = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))
    (nodes,) = [each["count"] for each in told.get("replicas", ()) if each["name"] == "headwater"]
    assert nodes == documents()["StatefulSet/headwater"]["spec"]["replicas"]
    (command,) = documents()["Job/headwater-cluster"]["spec"]["template"]["spec"]["containers"][0]["args"]
    founders = command.partition("cluster init")[2]
    assert len(set(re.findall(r"headwater-\d", founders))) == nodes
