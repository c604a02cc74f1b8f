"""Three real nodes as a cluster, four clients, and faults; each round is a cluster of its own.

    with Round(seed, folder) as this:
        this.run()
    history = this.history()

Nodes are killed, stopped and continued, cut off from each other and from clients; vbuckets change hands by rebalances,
and nodes are failed over, by the commands of `headwater cluster`. A node that is failed over while it is alive is cut
off from clients until it has the new map, as docs/howto/cluster.md requires of operators.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from threading import Lock
from types import TracebackType

from harness.linearizability.clients import Client
from harness.linearizability.links import OTHERS, Link, Links
from harness.linearizability.record import FaultKind, History, Recorder
from headwater import testing
from headwater.testing import processes
from headwater.testing.node import Node
from headwater.wire.address import Address

__all__ = ["Broken", "Round"]

NODES, CLIENTS, VBUCKETS = 3, 4, 8
KEYS = ("d1", "d2", "d3", "p1", "p2", "p3", "p4")
CLIENT_NAME = "clients"
COMMAND_SECONDS = 120.0
HEALTHY_SECONDS = 90.0
AT_REST_SECONDS = 60.0
CLOCK_ERROR_SECONDS = 1.05
"""All processes use the same clock, but nodes count in whole seconds."""
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
EVENTS = (2, 4)


class Broken(AssertionError):  # noqa: N818 - what it is
    """The cluster broke a promise that holds after any fault: to become healthy again, to answer, to obey a command."""


class Round:
    """A round; `with` starts the nodes and ends them.

    Args:
        seed: of all random decisions. folder: for the outputs of commands.

    Attributes:
        did: the faults, in words.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.did: list[str] = []
        self._random = Random(seed)  # noqa: S311 - must be repeatable
        self._folder = folder
        self._stack = ExitStack()
        self._recorder, self._lock = Recorder(CLOCK_ERROR_SECONDS), Lock()
        self._links = Links()
        self._nodes: list[Node] = []
        self._doors: list[Address] = []
        self._clients: list[Client] = []
        self._began = time.time()

    def __enter__(self) -> Round:
        self._stack.enter_context(self._links)
        self._links.owns(os.getpid(), CLIENT_NAME)
        for at in range(NODES):
            node = self._stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none"))
            self._nodes.append(node)
            self._doors.append(Address("127.0.0.1", self._links.door(self._name(at), lambda node=node: node.port)))  # type: ignore[misc]
            self._links.owns(node.pid, self._name(at))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.stopping.set()
        for node in self._nodes:
            if node.is_running:
                os.kill(node.pid, signal.SIGCONT)
        self._stack.__exit__(kind, value, traceback)

    def history(self) -> History:
        """Return all requests of clients and their answers."""
        with self._lock:
            return self._recorder.history()

    def run(self) -> None:
        """Create the cluster, cause faults, end them all, and read every key.

        Raises:
            Broken: it did not become healthy again. NodeError: a node broke.
        """
        replicas = self._random.choice((1, 2))
        self._note(f"founded with {replicas} replicas")
        self._obey("init", *map(str, self._doors), "--replicas", str(replicas))
        self._until_healthy()
        self._begin_clients()
        for _ in range(self._random.randint(*EVENTS)):
            self._sleep()
            self._random.choices(*zip(*self._events(), strict=True))[0]()
        self._sleep()
        self._until_healthy()
        self._end_clients()
        self._read_at_rest()

    def _events(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self._crash, 3),
            (self._pause, 3),
            (self._cut, 4),
            (self._fail_over_dead, 3),
            (self._fail_over_paused, 2),
            (self._fail_over_cut_off, 3),
            (self._rebalance, 2),
            (self._rebalance_in_trouble, 3),
        ]

    # --- what happens -----------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        victim = self._any()
        self._note(f"{self._name(victim)} is killed and started again")
        with self._fault(FaultKind.RESTART, f"of {self._name(victim)}"):
            self._nodes[victim].kill()
            self._sleep()
            self._start(victim)

    def _pause(self) -> None:
        victim = self._any()
        self._note(f"{self._name(victim)} is stopped and goes on")
        os.kill(self._nodes[victim].pid, signal.SIGSTOP)
        self._sleep()
        os.kill(self._nodes[victim].pid, signal.SIGCONT)

    def _cut(self) -> None:
        """Cut or stall some links for a while, then restore them."""
        names = [CLIENT_NAME, *map(self._name, range(NODES))]
        links = [(one, other) for one in names for other in names[1:] if one != other]
        chosen = self._random.sample(links, self._random.choice((1, 1, 2, 4)))
        state = self._random.choice((Link.CUT, Link.STALLED))
        self._note(f"{state.name.lower()}: " + ", ".join(f"{one} to {other}" for one, other in chosen))
        for one, other in chosen:
            self._links.set(one, other, state)
        self._sleep()
        for one, other in chosen:
            self._links.set(one, other, Link.UP)

    def _fail_over_dead(self) -> None:
        self._until_healthy()
        victim = self._any()
        self._note(f"{self._name(victim)} dies and is failed over")
        self._nodes[victim].kill()
        self._sleep()
        self._fail_over(victim)
        self._start(victim)
        self._join_again(victim)

    def _fail_over_paused(self) -> None:
        self._until_healthy()
        victim = self._any()
        self._note(f"{self._name(victim)} is stopped and failed over")
        os.kill(self._nodes[victim].pid, signal.SIGSTOP)
        self._links.set(CLIENT_NAME, self._name(victim), Link.CUT)
        self._sleep()
        self._fail_over(victim)
        os.kill(self._nodes[victim].pid, signal.SIGCONT)
        self._join_again(victim)
        self._links.set(CLIENT_NAME, self._name(victim), Link.UP)

    def _fail_over_cut_off(self) -> None:
        """Cut a node off from all but clients, then from them as well, and fail it over."""
        self._until_healthy()
        victim = self._any()
        self._note(f"{self._name(victim)} is cut off and failed over")
        others = [OTHERS, *(self._name(at) for at in range(NODES) if at != victim)]
        for other in others:
            self._links.set(other, self._name(victim), Link.CUT)
            self._links.set(self._name(victim), other, Link.CUT)
        self._sleep()
        self._links.set(CLIENT_NAME, self._name(victim), Link.CUT)
        self._fail_over(victim)
        for other in others:
            self._links.set(other, self._name(victim), Link.UP)
            self._links.set(self._name(victim), other, Link.UP)
        self._join_again(victim)
        self._links.set(CLIENT_NAME, self._name(victim), Link.UP)

    def _rebalance(self) -> None:
        self._until_healthy()
        victim = self._any()
        self._note(f"{self._name(victim)} leaves and comes back")
        with self._fault(FaultKind.MOVE, "by rebalance"):
            self._obey("rebalance", self._seed_but(victim), "--remove", str(self._doors[victim]), "--yes")
            self._obey("rebalance", self._seed_but(victim), "--add", str(self._doors[victim]), "--yes")

    def _rebalance_in_trouble(self) -> None:
        """Kill a node, cut a link, or kill the operator while vbuckets change hands; then rebalance once more."""
        self._until_healthy()
        victim, other = self._random.sample(range(NODES), 2)
        seed = self._seed_but(victim)
        trouble = self._random.choice(("crash", "cut", "operator"))
        self._note(f"{self._name(victim)} leaves, and meanwhile: {trouble} ({self._name(other)})")
        with self._fault(FaultKind.MOVE, "by rebalance"), self._fault(FaultKind.RESTART, "during a rebalance"):
            command = self._begin("rebalance", seed, "--remove", str(self._doors[victim]), "--yes", "--patience", "5")
            self._sleep()
            if trouble == "crash":
                self._nodes[other].kill()
                self._start(other)
            elif trouble == "cut":
                self._links.set(self._name(other), self._name(victim), Link.CUT)
                self._sleep()
                self._links.set(self._name(other), self._name(victim), Link.UP)
            else:
                command.kill()
            self._end(command)
            self._obey("rebalance", seed, "--remove", str(self._doors[victim]), "--yes", again=True)
            self._obey("rebalance", seed, "--add", str(self._doors[victim]), "--yes", again=True)

    # --- parts of it ------------------------------------------------------------------------------------------------

    def _fail_over(self, victim: int) -> None:
        with self._fault(FaultKind.FAILOVER, f"of {self._name(victim)}"):
            arguments = ("failover", self._seed_but(victim), "--dead", str(self._doors[victim]), "--yes")
            self._obey(*arguments, again=True)

    def _join_again(self, victim: int) -> None:
        with self._fault(FaultKind.MOVE, "by rebalance"):
            self._obey("rebalance", self._seed_but(victim), "--add", str(self._doors[victim]), "--yes", again=True)

    def _start(self, at: int) -> None:
        self._nodes[at].start()
        self._links.owns(self._nodes[at].pid, self._name(at))

    @contextmanager
    def _fault(self, kind: FaultKind, text: str) -> Iterator[None]:
        """Record a fault for a block. If the block fails, the fault may have an effect for ever."""
        began, ended = time.time(), None
        try:
            yield
            ended = time.time()
        finally:
            with self._lock:
                self._recorder.fault(kind, began=began, ended=ended, text=text)

    def _begin(self, *arguments: str) -> processes.Process:
        with (self._folder / "commands.log").open("ab") as log:
            return processes.start(["cluster", *arguments], os.environ, log)

    def _end(self, command: processes.Process) -> tuple[int, str]:
        """Wait for a command; return its status and output."""
        try:
            status = command.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            command.kill()
            raise Broken(f"a command did not end in {COMMAND_SECONDS:g} s") from None
        out = command.stdout
        output = out.read().decode() if out is not None else ""
        if out is not None:
            out.close()
        return status, output

    def _obey(self, *arguments: str, again: bool = False) -> None:
        """Run a command of `headwater cluster` that must succeed.

        Args:
            again: True to repeat it for a while until it does.
        """
        give_up = time.monotonic() + (HEALTHY_SECONDS if again else 0.0)
        while True:
            status, output = self._end(self._begin(*arguments))
            if status == 0:
                return
            if time.monotonic() > give_up:
                raise Broken(f"headwater cluster {' '.join(arguments)}: status {status}\n{output}{self._log()}")
            time.sleep(0.5)

    def _until_healthy(self) -> None:
        """Wait until `headwater cluster status` reports no problem, and no replica is behind for good."""
        give_up = time.monotonic() + HEALTHY_SECONDS
        while True:
            status, output = self._end(self._begin("status", str(self._doors[0])))
            if status == 0:
                return
            if time.monotonic() > give_up:
                raise Broken(f"not well after {HEALTHY_SECONDS:g} s:\n{output}{self._log()}")
            time.sleep(0.3)

    def _log(self) -> str:
        path = self._folder / "commands.log"
        return path.read_text("utf-8", "replace")[-2000:] if path.exists() else ""

    # --- clients ----------------------------------------------------------------------------------------------------

    def _begin_clients(self) -> None:
        for number in range(CLIENTS):
            client = self._client(number)
            client.start()
            self._clients.append(client)

    def _client(self, number: int) -> Client:
        random = Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable
        return Client(number, self._recorder, self._lock, self._doors, keys=KEYS, random=random)

    def _end_clients(self) -> None:
        for client in self._clients:
            client.stopping.set()
        for client in self._clients:
            client.join(AT_REST_SECONDS)
            if client.error is not None:
                raise client.error

    def _read_at_rest(self) -> None:
        """Read all keys twice while no client writes: a decided outcome must stay so."""
        reader, give_up = self._client(CLIENTS), time.monotonic() + AT_REST_SECONDS
        for _ in range(2):
            while not reader.read_all():
                if time.monotonic() > give_up:
                    raise Broken(f"some keys were not answered in {AT_REST_SECONDS:g} s, though all is well")
        reader.close()

    # --- small things -----------------------------------------------------------------------------------------------

    def _any(self) -> int:
        return self._random.randrange(NODES)

    def _name(self, at: int) -> str:
        return f"n{at}"

    def _seed_but(self, victim: int) -> str:
        return str(self._doors[(victim + 1) % NODES])

    def _sleep(self) -> None:
        time.sleep(self._random.choice(PAUSES))

    def _note(self, what: str) -> None:
        self.did.append(f"{time.time() - self._began:6.2f} s  {what}")
