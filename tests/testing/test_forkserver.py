"""The process that nodes are forked from; what its forks are like is in test_processes.py."""

import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from headwater.testing import forkserver


def test_nothing_is_forked_beside_a_thread() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(BlockingIOError, match="threads in the process that forks"):
            forkserver.check_alone()
    finally:
        over.set()
        thread.join()


def test_what_numpy_draws_differs_from_fork_to_fork() -> None:
    drawn = []
    for _ in range(2):
        np.random.seed(1)  # as every fork finds it
        forkserver.draw_anew()
        drawn.append(np.random.randint(1 << 60))
    assert drawn[0] != drawn[1]


def test_it_ends_with_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "headwater.testing.forkserver", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    ours.close()
    assert process.wait(120) == 0
