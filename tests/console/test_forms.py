import html
import re

import pytest

from headwater.client.routing import Address, parse
from headwater.cluster.work import (
    WORKS,
    Compact,
    CreateBucket,
    DeclaredWork,
    EncryptCluster,
    FailOver,
    InitCluster,
    PromoteReplicas,
    SetQuota,
    SpreadVbuckets,
)
from headwater.console.desk import templates
from headwater.console.forms import work_of
from headwater.errors import OptionError

PLAIN, SECURE = parse("couchbase://h:1/default"), parse("couchbases://h:1/default")


def test_a_form_is_read_by_the_table_of_options() -> None:
    work = work_of(SpreadVbuckets, {"add": "a:1, b:2 a:1", "remove": "", "replicas": "1"}, PLAIN)
    assert work == SpreadVbuckets(add=(Address("a", 1), Address("b", 2)), replicas=1)
    assert work.title == "Rebalance: add a:1, add b:2, 1 replicas"
    assert work_of(SpreadVbuckets, {}, PLAIN).title == "Rebalance: spread evenly"
    assert work_of(SpreadVbuckets, {"add": "a b:2"}, SECURE) == SpreadVbuckets((Address("a", 11207), Address("b", 2)))
    dead = work_of(FailOver, {"dead": "a:1", "force": "yes", "accept": "behind, part"}, PLAIN)
    assert dead == FailOver((Address("a", 1),), force=True, accept=("behind", "part"))
    assert work_of(Compact, {"vbucket": "3", "hours": "0"}, PLAIN) == Compact(3, 0)
    assert work_of(EncryptCluster, {"encrypted": "off"}, PLAIN) == EncryptCluster(encrypted=False)
    assert work_of(EncryptCluster, {"encrypted": "on"}, PLAIN) == EncryptCluster(encrypted=True)
    assert work_of(CreateBucket, {"name": " b ", "quota_mib": ""}, PLAIN) == CreateBucket("b")
    pair = work_of(PromoteReplicas, {"node": "b:1", "source": "a:1", "vbuckets": "0-2"}, PLAIN)
    assert pair == PromoteReplicas(Address("b", 1), Address("a", 1), (0, 1, 2))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (SpreadVbuckets, {"replicas": "4"}),
        (SpreadVbuckets, {"add": "http://a:1"}),
        (SpreadVbuckets, {"add": "ann:secret@a:1"}),
        (SpreadVbuckets, {"add": "a:99999"}),
        (FailOver, {"dead": "a:x"}),
        (FailOver, {"dead": "a:1", "accept": "everything"}),
        (InitCluster, {"nodes": ""}),
        (Compact, {"vbucket": "1024", "hours": "1"}),
        (Compact, {"vbucket": "1", "hours": ""}),
        (Compact, {"vbucket": "-1", "hours": "1"}),
        (SetQuota, {"name": "b", "quota_mib": "much"}),
        (CreateBucket, {"name": ""}),
        (PromoteReplicas, {"node": "a:1, b:1"}),
        (PromoteReplicas, {"node": "a:1", "vbuckets": "1-"}),
    ],
)
def test_what_can_not_be_asked_is_refused(kind: type[DeclaredWork], fields: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        work_of(kind, fields, PLAIN)


@pytest.mark.parametrize("kind", WORKS)
def test_a_form_has_a_field_with_its_meaning_for_each_option_of_its_work(kind: str) -> None:
    form = '{% from "forms.html" import work_form %}{{ work_form(kind, {"name": ["a", "b"]}, {"hours": 72}) }}'
    page = templates().from_string(form).render(kind=kind)
    assert f'action="/actions/{kind}/plan"' in page
    names = [option.field for option in WORKS[kind].options()]
    assert re.findall(r'<(?:input|select)[^>]* name="(\w+)"', page) == names
    assert [html.unescape(each) for each in re.findall("<small>(.*)</small>", page)] == [
        option.about for option in WORKS[kind].options()
    ]


def test_a_field_is_of_the_kind_of_its_option() -> None:
    form = '{% from "forms.html" import work_form %}{{ work_form(kind, {"name": ["a", "b"]}, {"hours": 72}) }}'
    pages = {kind: templates().from_string(form).render(kind=kind) for kind in WORKS}
    assert '<select name="name"><option>a</option><option>b</option></select>' in pages["bucket-drop"]
    assert '<select name="encrypted"><option>on</option><option>off</option></select>' in pages["tls"]
    assert '<input type="checkbox" name="force" value="yes">' in pages["failover"]
    assert re.search('name="hours" value="72" required inputmode="numeric"', pages["compaction"])
    assert re.search('name="concurrency" value="" inputmode="numeric" .* placeholder="8"', pages["rebalance"])
    danger = {kind for kind, page in pages.items() if 'class="danger"' in page}
    assert danger == {"flush", "bucket-drop", "collection-drop"}
