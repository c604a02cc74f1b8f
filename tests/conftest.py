"""Settings of all tests: how many examples hypothesis draws, and which tests must not run beside each other.

`pytest -n 3` gives each test file to one worker, so that a module's node or fixture is made once. All tests marked
`spark` go to one worker, whatever their files: they share a JVM, hence a process. Nothing here is needed to run a file
alone.
"""

import ast
import faulthandler
import importlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from headwater import invariants
from headwater.errors import InvariantBroken

# No deadline: workers share few cores, a kernel's first call compiles it. `ci` draws the same examples each
# time and writes no database, so that a red run can be repeated and workers do not meet in one directory.
_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, **_NO_CLOCK)
settings.register_profile("ci", max_examples=100, derandomize=True, database=None, print_blob=True, **_NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

ROOT = Path(__file__).parent.parent
ALL = "all tests of a file"


def group_of(nodeid: str) -> str:
    """Return what is given to one worker as a whole: a test file (path from the root), or all tests that need Spark."""
    file, _, test = nodeid.partition("::")
    needy = need_spark(file)
    return "spark" if ALL in needy or re.split(r"::|\[", test)[0] in needy else file


@cache
def text_of(file: str) -> str:
    """Return what is in a test file (path from the root)."""
    path = ROOT / file
    return path.read_text("utf-8") if path.is_file() else ""


@cache
def need_spark(file: str) -> frozenset[str]:
    """Return the names of a file's tests that need Spark, or `ALL`."""
    if "mark.spark" not in text_of(file):
        return frozenset()
    found = set()
    for node in ast.parse(text_of(file)).body:
        if any("mark.spark" in ast.unparse(each) for each in getattr(node, "decorator_list", [])):
            found.add(getattr(node, "name", ""))
        elif isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0]):
            found |= {ALL} if "mark.spark" in ast.unparse(node.value) else set()
    return frozenset(found)


def turn_of(nodeid: str) -> int:
    """Return when a test has its turn: what takes minutes begins first, or one worker is left with it at the end."""
    return 0 if group_of(nodeid) == "spark" else 1 if "mark.slow" in text_of(nodeid.partition("::")[0]) else 2


def take_signals() -> None:
    """Take the signals that whoever began this run ignores: nohup ignores SIGHUP, a shell those of a job behind `&`.

    An ignored signal is inherited by all that the tests start, and the product leaves it ignored, as it should.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_configure() -> None:
    """Give all that tests start a folder for temporary files that goes with this run: killed processes leave theirs."""
    take_signals()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # it has the variables of who began it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest keeps what failed for a while
    folder = tempfile.mkdtemp(prefix="headwater-tests-")
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)  # after multiprocessing's own folder (-100)
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Djava.io.tmpdir={folder}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings that are of these tests alone."""
    parser.addini("grace", "seconds for a test that pytest-timeout has ended to clean up", type="string", default="60")


def watch(stderr: int, seconds: float) -> None:
    """Let this process tell where each of its threads is, and end, if it goes on for so long.

    pytest-timeout ends a test by an exception. Machine code doesn't hear it, and what cleans up behind it may wait.
    """
    faulthandler.dump_traceback_later(seconds, file=stderr, exit=True)


def seconds_of(item: pytest.Item) -> float:
    """Return how long a test may take."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch a test with all that it sets up and cleans up, and a worker that waits for its next one."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    watch(stderr, seconds_of(item) + float(item.config.getini("grace")))
    try:
        return (yield)
    finally:
        watch(stderr, float(item.config.getini("timeout")))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Watch what cleans up after a test that failed: pytest itself ends each watch with the failure."""
    if isinstance(node, pytest.Item):
        watch(node.config.stash[fault_handler_stderr_fd_key], seconds_of(node))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Watch the end of the process: it waits for threads that tests have left."""
    stderr = os.dup(session.config.stash[fault_handler_stderr_fd_key])  # pytest closes its own before that
    watch(stderr, float(session.config.getini("timeout")))


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load a share of the test files before the others, in each worker another one.

    In a fresh clone pytest compiles every file anew. Workers that all begin with the first file would do so each for
    itself; like this they find most of the files compiled by another.
    """
    name, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or not isinstance(collector, pytest.Session):
        return
    asked = [Path(argument.partition("::")[0]).resolve() for argument in collector.config.args]
    files = sorted(file for file in ROOT.glob("tests/**/test_*.py") if any(map(file.is_relative_to, asked)))
    for file in files[int(name.removeprefix("gw")) % count :: count]:
        with suppress(Exception, pytest.skip.Exception):  # whatever is wrong with it is told when it is collected
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, all else as it stands. A test that would make a second Spark, in another worker, is refused."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("spark") is None:
            raise pytest.UsageError(f"{item.nodeid} takes the fixture `spark`: mark it with pytest.mark.spark")
    items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.fixture(autouse=True)
def broken_invariants() -> Iterator[list[InvariantBroken]]:
    """The invariants that a test broke in this process: it fails for them, unless it clears this."""
    broken: list[InvariantBroken] = []

    def hear(error: InvariantBroken, of_node: bool) -> None:
        broken.append(error)

    invariants.listeners.append(hear)
    yield broken
    invariants.listeners.remove(hear)
    assert not broken


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Used by pytest-xdist where it is installed and asked for.

    Its own `--dist loadgroup` marks node ids in a way that pytest 9.2 no longer sees.
    """
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - not everybody has it

    class ByGroup(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            # xdist gives all groups of a worker that died to others, those as well that are over. Who gets such a one
            # has nothing to do, and waits for ever with the last test that it has.
            workload = self.assigned_work[node]
            for group in [group for group, tests in workload.items() if all(tests.values())]:
                del workload[group]
            crashed: str | None = super().remove_node(node)
            return crashed

    config.option.loadscopereorder = False  # it would put the files with the most tests first
    return ByGroup(config, log)
