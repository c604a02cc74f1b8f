import http.client
import threading
from urllib.parse import urlsplit

import pytest

from headwater import testing
from headwater.client.routing import parse
from headwater.console.desk import ConsoleSettings
from headwater.console.server import ConsoleServer, names_of
from headwater.errors import OptionError


def test_it_listens_where_it_says_and_ends_when_told(node: testing.Node) -> None:
    server = ConsoleServer(ConsoleSettings(parse(node.url)))
    told: list[str] = []
    listening = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda url: (told.append(url), listening.set()),))
    thread.start()
    try:
        assert listening.wait(60)
        assert told == [server.url]
        url = urlsplit(server.url)
        assert (url.hostname, url.port) == ("127.0.0.1", server.port)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", f"{url.path}?{url.query}")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["location"]) == (303, "/")
        assert f"headwater-console-{server.port}=" in answer.headers["set-cookie"]
        assert "server" not in answer.headers
        connection.close()
    finally:
        server.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_a_port_that_is_taken_is_refused() -> None:
    target = parse("couchbase://127.0.0.1:1/default")
    one = ConsoleServer(ConsoleSettings(target))
    with pytest.raises(OSError, match="in use"):
        ConsoleServer(ConsoleSettings(target, port=one.port))
    one.close()


def test_a_network_gets_it_only_where_that_is_meant() -> None:
    assert names_of("127.0.0.1", ["ops.example"], insecure=False) == {"127.0.0.1", "ops.example"}
    assert names_of("::1", [], insecure=False) == {"[::1]"}
    with pytest.raises(OptionError, match="ssh -L"):
        names_of("0.0.0.0", [], insecure=False)
    assert names_of("10.0.0.7", [], insecure=True) == {"10.0.0.7"}
