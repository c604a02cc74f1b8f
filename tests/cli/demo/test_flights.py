"""The demo's documents."""

import json

from headwater.cli.demo.flights import read_flights


def test_a_flight_is_a_json_document_under_a_key_that_names_it() -> None:
    flights = read_flights(rows_max=3)
    key, value = next(iter(flights.items()))
    assert key == b"2013-01-01/UA1545/EWR"
    assert json.loads(value)["tailnum"] == "N14228" and json.loads(value)["time_hour"] == "2013-01-01T10:00:00Z"
    assert len(flights) == 3


def test_no_two_flights_of_the_year_share_a_key() -> None:
    assert len(read_flights()) == 336_776
