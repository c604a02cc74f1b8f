"""The addresses of a node: taken, tried, refused."""

import socket
from collections.abc import Iterator

import pytest

from headwater.errors import OptionError
from headwater.node.config import NodeConfig
from headwater.node.connections.listening import bound, try_addresses


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_an_address_is_bound_and_one_that_is_taken_names_its_option(taken: int) -> None:
    with bound("port", "127.0.0.1", 0) as free:
        assert free.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OptionError, match=f'"port": "127.0.0.1:{taken}" is not an address to listen on .*in use'):
        bound("port", "127.0.0.1", taken)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 64])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match="an address to listen on"):
        bound("port", host, 0)


def test_an_address_may_be_refused_once_it_is_known() -> None:
    def refuse(host: str) -> None:
        raise OptionError("host", host, "ours")

    with pytest.raises(OptionError, match=r'"127\.0\.0\.1" is not ours'):
        bound("port", "localhost", 0, refuse)


@pytest.mark.parametrize("option", ["port", "http_port", "tls_port"])
def test_each_address_is_tried_and_let_go(option: str, taken: int) -> None:
    def config(port: int) -> NodeConfig:
        ports = {"port": 0, option: port}
        return NodeConfig(tls_certificate="n1.pem" if option == "tls_port" else "", **ports)  # type: ignore[arg-type]

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
    try_addresses(config(free))
    try_addresses(config(free))
    with pytest.raises(OptionError, match=f'"{option.replace("_", "-")}": "127.0.0.1:{taken}"'):
        try_addresses(config(taken))


def test_a_port_that_only_tls_is_spoken_on_is_the_only_one_tried(taken: int) -> None:
    try_addresses(NodeConfig(port=taken, tls_certificate="n1.pem", tls_port=0, without_tls="nobody"))
