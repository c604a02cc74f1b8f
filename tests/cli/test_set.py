from tests.cli.support import Run


def test_what_is_set_is_got_byte_for_byte(run: Run) -> None:
    assert run("set", "greeting", "hello  wörld")[0] == 0
    assert run("get", "greeting") == (0, "hello  wörld", "")


def test_a_value_is_read_from_stdin(run: Run) -> None:
    run("set", "piped", "-", stdin=b"line 1\nline 2")
    assert run("get", "piped")[1] == "line 1\nline 2"


def test_a_stale_cas_is_refused_with_status_1(run: Run) -> None:
    run("set", "guarded", "new")
    status, shown, told = run("set", "guarded", "newer", "--cas", "1")
    assert (status, shown) == (1, "") and told.startswith("headwater: ") and told.count("\n") == 1
    assert run("get", "guarded")[1] == "new"
