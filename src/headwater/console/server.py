"""The console's own server: one address, no log of requests, and an end at Ctrl-C that does not wait for live pages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import uvicorn
from starlette.applications import Starlette

from headwater.console.app import make_app
from headwater.console.desk import ConsoleSettings, Desk
from headwater.console.guard import Secrets
from headwater.errors import OptionError
from headwater.protocol.browser import LOOPBACK

GOODBYE_SECONDS = 5
"""The time that open pages have to end; a tail whose node is away checks every four seconds."""


class _Server(uvicorn.Server):
    """A server that ends its live pages before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._console = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        desk: Desk = self._console.state.desk
        desk.end_pages()
        await super().shutdown(sockets)


class ConsoleServer:
    """A console that listens on its port.

    Args:
        settings: with the `port`; 0 takes a free one.
        host: the address to listen on.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """

    def __init__(self, settings: ConsoleSettings, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, settings.port), family=family)
        self.host: Final = host
        self.port: int = int(self._socket.getsockname()[1])
        self.secrets: Final = Secrets()
        app = make_app(replace(settings, port=self.port), self.secrets)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # addresses have keys of documents in them, and one has the console's
            server_header=False,
            loop="asyncio",
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
        self._server = _Server(config, app)

    @property
    def url(self) -> str:
        """The address to open, with the key."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/login?key={self.secrets.key}"

    def run(self, started: Callable[[str], None]) -> None:
        """Serve until SIGINT or SIGTERM; `started` is called with the address once it listens."""
        started(self.url)
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Release the port, if the server never ran."""
        self._socket.close()

    def stop(self) -> None:
        """Stop; may be called from any thread."""
        self._server.should_exit = True


def names_of(host: str, names: Sequence[str], *, insecure: bool) -> frozenset[str]:
    """Return the names by which browsers may call a console on an address, besides this machine's own.

    Raises:
        OptionError: the network could reach it, and `insecure` is False.
    """
    name = f"[{host}]" if ":" in host else host
    if name not in LOOPBACK and not insecure:
        allowed = (
            "127.0.0.1, for pages and their cookie cross a network as they are (better: ssh -L), or with --insecure"
        )
        raise OptionError("host", host, allowed)
    return frozenset({name, *names})
