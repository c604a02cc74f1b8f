"""vbucket states and the place of a key."""

from collections import Counter

from headwater.wire.vbucket import State, vbucket_of


def test_replica_is_2_and_pending_is_3():
    assert [(state.name, state.value) for state in State] == [
        ("ACTIVE", 1),
        ("REPLICA", 2),
        ("PENDING", 3),
        ("DEAD", 4),
    ]


def test_a_key_is_placed_by_the_middle_of_its_crc():
    assert vbucket_of(b"123456789", 1024) == (0xCBF43926 >> 16) & 0x7FFF & 1023  # the check value of CRC-32
    assert vbucket_of(b"", 1024) == 0


def test_keys_spread_over_all_vbuckets():
    counts = Counter(vbucket_of(b"key-%d" % number, 64) for number in range(6400))
    assert len(counts) == 64 and max(counts.values()) < 200
