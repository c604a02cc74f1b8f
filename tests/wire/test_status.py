"""Statuses, and what an old client is told instead."""

import pytest

from headwater.wire.status import BODIED, Status, name_of, without_xerror


def test_numbers_are_those_of_the_specification():
    assert (Status.KEY_ENOENT, Status.NOT_MY_VBUCKET, Status.ROLLBACK, Status.ETMPFAIL) == (0x01, 0x07, 0x23, 0x86)
    assert len(Status) == 83 and Status.SUBDOC_FIELD_NOT_BINARY_VALUE == 0xD8


def test_names_are_found_by_number():
    assert name_of(0x23) == "ROLLBACK" and name_of(0xFF01) == "0xff01"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status.SUCCESS, Status.SUCCESS),
        (Status.ROLLBACK, Status.ROLLBACK),
        (Status.LOCKED, Status.KEY_EEXISTS),
        (Status.CAS_VALUE_INVALID, Status.KEY_EEXISTS),
        (Status.NOT_LOCKED, Status.ETMPFAIL),
        (Status.SYNC_WRITE_IN_PROGRESS, Status.ETMPFAIL),
        (Status.UNKNOWN_COLLECTION, Status.EINVAL),
        (Status.EACCESS, None),
        (Status.NO_BUCKET, None),
        (Status.DCP_STREAMID_INVALID, None),
        (0xFF01, None),
    ],
)
def test_an_old_client_is_not_surprised(status, told):
    assert without_xerror(status) == told


def test_a_client_with_collections_learns_of_unknown_ones():
    assert without_xerror(Status.UNKNOWN_SCOPE, collections=True) == Status.UNKNOWN_SCOPE


def test_some_statuses_carry_an_ordinary_body():
    assert Status.ROLLBACK in BODIED and Status.NOT_MY_VBUCKET not in BODIED
