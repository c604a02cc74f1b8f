"""Ctrl-C and SIGTERM as one exception."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from headwater.cli.stopping import Stopped, heeding_signals, listen, signals, until_stopped

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers are put back, whatever a test did to them."""
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_an_exception_that_names_it(number: signal.Signals) -> None:
    listen()
    with pytest.raises(Stopped, match=f"stopped by {number.name}") as caught:
        os.kill(os.getpid(), number)
    assert caught.value.signal == number


class _Lease:
    """Sends a signal when it is let go, where Python passes over what a handler raises."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_comes_while_an_object_is_let_go_still_stops(number: signal.Signals) -> None:
    listen()
    with pytest.raises(Stopped, match=f"stopped by {number.name}"):
        _Lease(number)
        time.sleep(60)


def test_whoever_started_us_with_nohup_is_not_ended_by_a_terminal_that_is_closed() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listen()
    with heeding_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signals() == ENDING[:2]


def test_code_that_goes_on_after_errors_does_not_go_on_after_a_stop() -> None:
    assert not issubclass(Stopped, Exception)


@pytest.mark.parametrize("stop", [Stopped(2), KeyboardInterrupt()])
def test_what_runs_until_it_is_stopped_ends_well(stop: BaseException) -> None:
    with until_stopped():
        raise stop


@pytest.mark.parametrize("stop", [Stopped(2), KeyboardInterrupt()])
def test_what_has_an_end_and_is_stopped_before_does_not_end_well(stop: BaseException) -> None:
    with pytest.raises(type(stop)), until_stopped(has_end=True):
        raise stop


@pytest.mark.parametrize("number", ENDING)
def test_work_that_asks_and_has_an_end_says_when_that_was_not_reached(number: signal.Signals) -> None:
    with pytest.raises(Stopped) as caught, heeding_signals(has_end=True) as stop:
        os.kill(os.getpid(), number)
        assert stop()
    assert caught.value.signal == number
    with heeding_signals(has_end=True) as stop:
        assert not stop()


def test_other_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="other"), until_stopped():
        raise ValueError("other")


@pytest.mark.parametrize("number", ENDING)
def test_work_that_must_not_be_torn_asks_whether_to_end(number: signal.Signals) -> None:
    with heeding_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()


def test_asking_takes_the_handlers_back_and_the_end_returns_them() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with heeding_signals() as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
    assert [signal.getsignal(number) for number in ENDING] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_line_is_imported_is_one_line(number: signal.Signals) -> None:
    """A module that the command line imports sends the signal: there is no later moment to wait for."""
    code = (
        "import os, sys\n"
        "class Meanwhile:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'headwater.cli.app': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Meanwhile())\n"
        "sys.argv = ['headwater', 'get', 'k']\n"
        "from headwater.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (128 + number, f"headwater: stopped by {number.name}\n")
