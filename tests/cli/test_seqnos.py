import json

from tests.cli.support import Run


def test_the_seqnos_of_all_or_some_vbuckets_are_shown(run: Run) -> None:
    run("set", "counted", "v")
    plain = dict(line.split() for line in run("seqnos")[1].splitlines())
    assert len(plain) == 16 and sum(map(int, plain.values())) > 0
    assert json.loads(run("seqnos", "--json", "--vbuckets", "0-3")[1]) == {name: int(plain[name]) for name in "0123"}
