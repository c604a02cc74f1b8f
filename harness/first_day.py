"""A newcomer's first day, by the commands of README.md and the guides alone, in an empty folder:

    python -m harness.first_day dist/headwater-0.1.0-py3-none-any.whl

The wheel is installed into an empty environment, whose commands alone are typed from there on, with an empty cache.
systemd looks at the unit of deploy/, and its command is started as systemd does, with a socket for its notice. Three
nodes become a cluster; documents are loaded; each page of the console is opened, the first one in Chromium where that
is installed; a real Prometheus (Debian's `prometheus`) scrapes the nodes with the alert rules of deploy/, and is asked
each query of the dashboard and each alert; a backup is made, the nodes are wiped, it is restored into new ones, and
what is exported before and after is compared key by key. Prints a line for each step; the first result that differs
from what the pages promise ends it with status 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import Any, Final
from urllib.parse import quote, urljoin
from urllib.request import HTTPCookieProcessor, build_opener, urlopen

ROOT: Final = Path(__file__).parent.parent
BOARD: Final = ROOT / "deploy" / "grafana" / "headwater.json"
RULES: Final = ROOT / "deploy" / "prometheus" / "headwater.rules.yml"
UNIT: Final = ROOT / "deploy" / "systemd" / "headwater.service"
PATIENCE_SECONDS: Final = 240.0
CONFIGURATION: Final = """global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: headwater
    static_configs:
      - targets: {targets}
"""
# Series that there are only where there is such a thing: certificates, and what is refused.
ONLY_WITH: Final = {"headwater_tls_certificate_ends_seconds"}


class Unlike(Exception):  # noqa: N818 - what was found, not what failed
    """A result differs from what the pages promise."""


class Day:
    """The folder of a day, and the processes that were started in it."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.folder, self.documents = folder, documents
        kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG", "http"))}
        self.environment = {**kept, "HOME": str(folder), "PATH": f"{folder}/venv/bin:{os.environ['PATH']}"}
        self.behind: list[subprocess.Popen[str]] = []

    def install(self, wheel: Path) -> None:
        """Create an empty environment and install the wheel, by the commands of docs/howto/install.md."""
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)  # noqa: S603 - our own command
        words = (
            "install",
            "-q",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            f"{wheel.absolute()}[console]",
        )
        subprocess.run([self.folder / "venv" / "bin" / "pip", *words], check=True, env=self.environment)  # noqa: S603
        told("installed", f"{wheel.name} into an empty environment: {self.run('--version').strip()}")

    def run(self, *words: object, status: int = 0) -> str:
        """Run a command of ours, which must end with `status`; return its output."""
        told = ["headwater", *map(str, words)]
        done = subprocess.run(  # noqa: S603 - our own command
            told, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != status:
            raise Unlike(f"{' '.join(told)}: status {done.returncode}: {done.stderr}")
        return done.stdout

    def begin(self, *words: object, said: str = "ready ", **more: str) -> str:
        """Start a program that keeps running; return its first line that begins with `said`."""
        log = (self.folder / f"{len(self.behind)}.log").open("w+")
        process = subprocess.Popen(  # noqa: S603 - our own commands, and Prometheus
            [*map(str, words)], cwd=self.folder, env=self.environment | more, stdout=log, stderr=log, text=True
        )
        self.behind.append(process)

        def line() -> str:
            log.seek(0)
            found = [each for each in log.read().splitlines() if said in each]
            return found[0] if found else ""

        try:
            return wait(lambda: process.poll() is not None or line(), f"{words[0]} {words[1]}: {log.name}") and line()
        finally:
            log.close()

    def end(self) -> None:
        """Send SIGTERM to all processes of the day."""
        for each in self.behind:
            each.send_signal(signal.SIGTERM)
        for each in self.behind:
            each.wait(60)
        self.behind.clear()


def wait(true: Callable[[], Any], why: str) -> Any:
    """Poll until `true()` returns a true value, and return it; `why` is for the error."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := true()):
        if time.monotonic() > end:
            raise Unlike(f"not within {PATIENCE_SECONDS:.0f} s: {why}")
        time.sleep(0.2)
    return found


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def told(what: str, how: str) -> None:
    """Print a line about a step of the day."""
    print(f"{what:<36} {how}", flush=True)


def nodes(day: Day, name: str) -> tuple[list[str], list[str]]:
    """Start three nodes and make a cluster of them; return their addresses, and those of their pages."""
    found, pages = [], []
    for number in range(3):
        page = free_port()
        place = ("--data", f"{name}-{number}", "--port", 0, "--http-port", page, "--vbuckets", 64)
        ready = day.begin("headwater", "serve", *place, "--vbucket-state", "none")
        if not ready:
            raise Unlike(f"node {number} did not come up: {day.folder}/{len(day.behind) - 1}.log")
        found.append(ready.split()[1])
        pages.append(f"127.0.0.1:{page}")
    told("three nodes, one cluster", day.run("cluster", "init", *found, "--replicas", 1).strip())
    return found, pages


def load(day: Day, node: str) -> None:
    """Load documents from a CSV file, with leading zeros, non-ASCII text and empty fields."""
    with (day.folder / "documents.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "zip", "name"])
        table.writerows(
            [f"{number:07}", f"{number % 1000:05}", "Müller" * (number % 3)] for number in range(day.documents)
        )
    day.run("load", "documents.csv", "--key", "id", "--node", node)
    told("loaded", f"{day.documents} documents of a CSV file")


def service(day: Day) -> None:
    """Check the unit with systemd, and start its command as systemd does, with a socket for the notice that it is
    ready.
    """
    unit = UNIT.read_text()
    if shutil.which("systemd-analyze") is None:
        told("systemd", "is not installed here: the unit was not verified")
    else:
        command = ["systemd-analyze", "verify", "--man=no", str(UNIT)]
        looked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - Debian's
        if wrong := [line for line in looked.stderr.splitlines() if UNIT.name in line]:
            raise Unlike(f"systemd-analyze: {wrong}")
        told("systemd", "nothing wrong with the unit")
    (day.folder / "node.toml").write_text("port = 0\nvbuckets = 64\n")
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    line = line.replace("/etc/headwater/node.toml", "node.toml").replace("/var/lib/headwater", "state")
    with socket(AF_UNIX, SOCK_DGRAM) as notices:
        notices.bind(str(day.folder / "notify"))
        notices.settimeout(PATIENCE_SECONDS)
        began = time.monotonic()
        ready = day.begin(*line.split(), NOTIFY_SOCKET=str(day.folder / "notify"))
        notice = notices.recv(4096).decode() if ready else ""
    if "READY=1" not in notice:
        raise Unlike(f"the unit's command did not say that it is ready: {notice!r}, {day.folder}/0.log")
    told("its command, on an empty cache", f"{notice.splitlines()[0]} after {time.monotonic() - began:.1f} s")
    day.end()


def held(day: Day, node: str, name: str) -> dict[str, dict[str, Any]]:
    """Return all documents of a cluster, with flags, expiry, CAS and revision, by an export."""
    day.run("export", name, "--node", node)
    rows = map(json.loads, (day.folder / name).read_text("utf-8").splitlines())
    return {row["key"]: {each: value for each, value in row.items() if each != "seqno"} for row in rows}


def console(day: Day, node: str, count: int) -> None:
    """Open the console with the address that it prints, as a browser does, and each page that it links to."""
    ready = day.begin("headwater", "console", f"couchbase://{node}/default", "--port", 0)
    if not ready:
        raise Unlike("the console did not come up")
    address = ready.split()[1]
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with browser.open(address, timeout=60) as answer:
        page, root = answer.read().decode(), answer.url
    if page.count(node) < 1 or answer.status != 200:
        raise Unlike("the console's first page does not show the node")
    links = sorted({urljoin(root, each) for each in re.findall(r'href="(/[^"#]*)"', page)})
    for link in links:
        with browser.open(link, timeout=60) as answer:
            if answer.status != 200:
                raise Unlike(f"the console's page {link}: {answer.status}")
    told("console", f"{root}: {len(page)} bytes, {count} nodes on it; {len(links)} pages and files behind its links")
    chromium(day, address, node)


def chromium(day: Day, address: str, node: str) -> None:
    """Open the console in Debian's Chromium."""
    if shutil.which("chromium") is None:
        told("console in Chromium", "is not installed here (apt-get install chromium): left out")
        return
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run(  # noqa: S603 - Debian's
        [*command, f"--user-data-dir={day.folder}/chromium", address],
        env=day.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    if shown.stdout.count(node) < 1:
        raise Unlike(f"Chromium does not show the node: {shown.stdout[:200]} {shown.stderr[-500:]}")
    told("console in Chromium", f"shows {node}: {len(shown.stdout)} bytes of the page as it became")


def prometheus(day: Day, pages: list[str], node: str) -> None:
    """Let a real Prometheus scrape the nodes, and run all queries of the dashboard and of the alerts on it."""
    if shutil.which("prometheus") is None:
        told("prometheus", "is not installed here (apt-get install prometheus): left out")
        return
    (day.folder / "prometheus.yml").write_text(CONFIGURATION.format(rules=RULES, targets=json.dumps(pages)))
    place = f"127.0.0.1:{free_port()}"
    words = ("--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address={place}")
    day.begin("prometheus", *words, said="ready to receive")

    def ask(query: str) -> list[Any]:
        with urlopen(f"http://{place}/api/v1/query?query={quote(query)}", timeout=60) as answer:
            return list(json.load(answer)["data"]["result"])

    wait(lambda: len(ask('up{job="headwater"} == 1')) == 3, "Prometheus scrapes three nodes")
    day.begin("headwater", "tail", "--node", node, "--follow", "--json", said="{")  # a stream, and its backlog
    wait(lambda: ask("headwater_dcp_backlog_changes"), "a stream's backlog")
    for number in range(6):  # something to count, and to refuse, over some scrapes
        day.run("set", f"first-day:{number % 3}", "x", "--node", node)
        day.run("get", f"nobody:{number % 3}", "--node", node, status=1)
    queries = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
    asked = {query: query.replace("$instance", ".*") for query in queries}
    for query, ours in asked.items():
        wait(lambda ours=ours: ask(ours), f"series for the dashboard's {query}")  # type: ignore[misc]
    told("prometheus: the dashboard", f"{len(asked)} queries, each with series of {len(pages)} nodes")
    with urlopen(f"http://{place}/api/v1/rules", timeout=60) as answer:
        rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
    wrong = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] == "err"]
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    silent = [
        name for rule in rules for name in re.findall(r"\b(?:headwater_\w+|up)\b", rule["query"]) if not ask(name)
    ]
    if wrong or firing or set(silent) - ONLY_WITH:
        raise Unlike(f"alerts: wrong {wrong}, firing {firing}, on metrics that nobody tells {silent}")
    told("prometheus: the alerts", f"{len(rules)} rules, none fires; metrics without series: {silent or 'none'}")


def main() -> int:
    """Run all steps of the day; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.first_day")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        day = Day(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-day-"))), options.documents)
        stack.callback(day.end)
        try:
            day.install(options.wheel)
            service(day)
            _live(day)
        except Unlike as unlike:
            print(f"first day: {unlike}", file=sys.stderr)
            return 1
    print("the first day went as the pages say")
    return 0


def _live(day: Day) -> None:
    first, pages = nodes(day, "first")
    load(day, first[0])
    console(day, first[0], len(first))
    prometheus(day, pages, first[0])
    before = held(day, first[0], "before.jsonl")
    created = day.run("backup", "create", "backups", "--node", first[0])
    told("backup", created.strip().splitlines()[-1])
    day.run("backup", "verify", "backups")
    day.end()
    for folder in day.folder.glob("first-*"):
        shutil.rmtree(folder)
    told("wiped", "three nodes ended, their folders removed")
    second, _ = nodes(day, "second")
    told("restore", day.run("backup", "restore", "backups", "--node", second[0]).strip().splitlines()[-1])
    after = held(day, second[0], "after.jsonl")
    unlike = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    if unlike or len(before) < day.documents:
        raise Unlike(f"{len(unlike)} of {len(before)} keys differ after the restore, the first: {unlike[:3]}")
    told(
        "compare key by key",
        f"{len(before)} before, {len(after)} after: value, flags, expiry, CAS and revision are equal",
    )


if __name__ == "__main__":
    sys.exit(main())
