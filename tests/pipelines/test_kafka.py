"""Addresses, properties and positions of a publication. What a broker does with them is in test_publish.py."""

from __future__ import annotations

import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import OptionError, PublishRefused
from headwater.pipelines.jobs import Publish
from headwater.pipelines.kafka import KafkaTarget, Mark, PublicationState, TopicState, slot_of
from headwater.pipelines.ledger import LedgerRecord

BUCKET = "couchbase://127.0.0.1:11210/orders"


def target(to: str, **more: Any) -> KafkaTarget:
    return Publish(BUCKET, to, **more).target


def test_an_address_names_brokers_and_topic() -> None:
    found = target("kafka://a,b:9094,[::1]:1/changes")
    assert (found.brokers, found.topic) == ("a:9092,b:9094,[::1]:1", "changes")
    assert (found.name, found.positions) == ("headwater-orders-changes", "headwater-orders-changes-positions")
    assert target("kafka://a/changes", name="mine").positions == "mine-positions"


def test_a_template_names_topics() -> None:
    found = target("kafka://a/{bucket}.{scope}.{collection}")
    assert found.name == "headwater-orders-bucket.scope.collection"
    assert found.topic_of("orders", "eu%", "carts") == "orders.eu_.carts"


@pytest.mark.parametrize(
    "to",
    [
        "",
        "a/changes",
        "http://a/changes",
        "kafka://a",
        "kafka:///changes",
        "kafka://a:0/changes",
        "kafka://a:x/changes",
        "kafka://a/two words",
        "kafka://a/{key}",
        "kafka://a/{",
        "kafka://a/{bucket.x}",
        "kafka://a/..",
        "kafka://a/a/b",
        "kafka://a/" + "x" * 250,
    ],
)
def test_what_is_no_address_is_refused(to: str) -> None:
    with pytest.raises(OptionError, match='option "to"'):
        target(to)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(OptionError, match=r"@a/changes.*without a name and a password") as refused:
        target("kafka://ann:secret@a/changes")
    assert "secret" not in str(refused.value)


def test_properties_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# kafka.properties\n\nsecurity.protocol=SASL_SSL\n sasl.password = a=b \n")
    found = target("kafka://a/changes", kafka_file=str(file), kafka={"security.protocol": "SSL"})
    assert found.properties == {"security.protocol": "SSL", "sasl.password": "a=b"}
    assert "a=b" not in repr(found)


def test_what_is_no_property_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("a=b\nsecret\n")
    for file, what in (("wrong", "line 2"), ("none", "No such file")):
        with pytest.raises(OptionError, match=what) as refused:
            target("kafka://a/changes", kafka_file=str(tmp_path / file))
        assert "secret" not in str(refused.value)
    with pytest.raises(OptionError, match=r'"transactional\.id" is not a property that may be chosen'):
        target("kafka://a/changes", kafka={"transactional.id": "x"})
    with pytest.raises(OptionError, match='option "name"'):
        target("kafka://a/changes", name="two words")


def test_what_a_batch_notes_is_read_back() -> None:
    end = {"v": 1, "vb": {"7": ["00a1b2c3d4e5f607", 9]}}
    noted = PublicationState(
        LedgerRecord("orders", end, 3), {"topic": "t"}, {"t": TopicState("id", ("eu.carts",))}, {"7": 4}, (12.5, 2)
    )
    assert PublicationState.read(noted.text()) == noted


def test_positions_of_an_earlier_version_have_topics_without_ids() -> None:
    known = json.loads(zlib.decompress(PublicationState(LedgerRecord("orders", {}, 3)).text()))
    written = zlib.compress(json.dumps({**known, "topics": ["t"]}).encode())
    assert PublicationState.read(written).topics == {"t": TopicState("", ())}


def test_positions_among_the_events_are_refused() -> None:
    with pytest.raises(OptionError, match=r'"name": "mine" is not a name whose positions, in the topic mine-positions'):
        target("kafka://a/mine-positions", name="mine")


def test_positions_of_a_later_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    written = PublicationState(LedgerRecord("orders", {}, 3)).text()
    monkeypatch.setattr("headwater.pipelines.kafka.FORMAT", 0)
    with pytest.raises(PublishRefused, match="positions are of format 1, and this version writes 0"):
        PublicationState.read(written)


def test_of_each_power_of_two_the_newest_mark_is_kept() -> None:
    kept: dict[int, int] = {}
    for number in range(1, 1001):
        kept[slot_of(number)] = number
    ages = sorted(1001 - number for number in kept.values())
    assert ages[0] == 1 and all(later <= 4 * sooner for sooner, later in pairwise(ages))
    assert Mark(3, {"7": 9}, {"t": {"0": 5}}).text() != b""
