"""A way to a lock service that can be cut: a partition, or the answer to one request."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.coordinators.servers import Servers
from tests.proxy import Proxy


class Way(Proxy):
    """A proxy to one server of a lock service."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"host={host} port={port}")
        self._cut_off = False
        self._unanswered: list[bytes] = []
        #: How often it let something not through.
        self.swallowed = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()
        return str(host), int(port)

    def partition(self) -> None:
        """Let nothing through any more, on connections there are and on new ones."""
        self._cut_off = True

    def heal(self) -> None:
        """Let everything through again, on new connections."""
        self.cut()
        self._cut_off = False

    def let_new_through(self) -> None:
        """Let new connections through again; those that there are stay open and silent."""
        self.freeze()
        self._cut_off = False

    def lose_reply_to(self, words: bytes) -> None:
        """Let the next request with these words through, and cut the connection at its answer."""
        self._unanswered.append(words)

    def _pass(self, client: socket.socket, server: socket.socket, data: bytes) -> bytes:
        while self._cut_off and data:
            self.swallowed += 1
            data = client.recv(65536)
        if self._unanswered and self._unanswered[0] in data:
            self._unanswered.pop(0)
            self._left[client] = 0
        return super()._pass(client, server, data)


@contextmanager
def ways_to(servers: Servers) -> Iterator[tuple[str, Sequence[Way]]]:
    """A way to each server, and the URL that leads over them."""
    with ExitStack() as stack:
        ways = [Way(host, port) for host, port in servers.addresses]
        for way in ways:
            stack.callback(way.close)
        yield servers.url([way.address for way in ways]), ways
