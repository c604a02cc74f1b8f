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


def test_a_document_can_be_stored_on_a_majority_of_its_copies(run: Run) -> None:
    assert run("set", "order", "paid", "--durability", "majority")[0] == 0
    assert run("set", "order", "sent", "--durability", "persist-to-majority", "--durability-timeout", "2.5")[0] == 0
    assert run("get", "order")[1] == "sent"
    assert run("delete", "order", "--durability", "MAJORITY")[0] == 0
    assert run("get", "order")[0] == 1


def test_a_durability_that_can_not_be_is_a_mistake_of_the_user(run: Run) -> None:
    for arguments, named in (
        (("--durability", "most"), "majority-and-persist-to-active"),
        (("--durability", "majority", "--durability-timeout", "99"), "0.001 to 65.534"),
        (("--durability", "majority", "--durability-timeout", "30"), "less than 10 s"),
        (("--durability-timeout", "2"), "--durability"),
    ):
        for command in (("set", "never", "v"), ("delete", "never")):
            status, shown, told = run(*command, *arguments)
            assert (status, shown) == (2, "") and named in told and "Traceback" not in told, (arguments, told)
    assert run("get", "never")[0] == 1
