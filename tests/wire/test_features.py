"""HELLO features and what they rest on."""

from headwater.wire.features import OWN_FEATURES, Feature, missing_prerequisites


def test_numbers_are_those_of_the_specification():
    assert (Feature.XATTR, Feature.XERROR, Feature.SNAPPY, Feature.COLLECTIONS) == (0x06, 0x07, 0x0A, 0x12)
    assert max(code for code in Feature if code < OWN_FEATURES) == 0x26


def test_what_is_asked_for_without_its_foundation_is_found():
    assert missing_prerequisites([Feature.VATTR, Feature.JSON]) == {Feature.VATTR: {Feature.XATTR}}
    assert missing_prerequisites([Feature.VATTR, Feature.XATTR, 0x7777]) == {}
    assert missing_prerequisites([Feature.CLUSTERMAP_CHANGE_NOTIFICATION]) == {0x0D: {Feature.DUPLEX}}
