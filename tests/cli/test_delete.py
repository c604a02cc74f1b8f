from tests.cli.support import Run


def test_what_is_deleted_is_gone(run: Run) -> None:
    run("set", "doomed", "v")
    assert run("delete", "doomed")[0] == 0
    assert run("get", "doomed")[0] == 1 and run("delete", "doomed")[0] == 1


def test_a_document_is_deleted_only_as_long_as_it_has_the_cas_that_was_given(run: Run) -> None:
    cas = run("set", "guarded", "v")[1].split()[1]
    assert run("delete", "guarded", "--cas", "1")[0] == 1
    status, told, _ = run("delete", "guarded", "--cas", cas)
    assert status == 0 and int(told.split()[1]) > int(cas)
