from headwater.wire.address import Address


def test_an_address_is_written_as_people_write_it():
    assert str(Address("10.0.0.1", 11210)) == "10.0.0.1:11210"
    assert str(Address("fe80::1", 11210)) == "[fe80::1]:11210"
