"""A TCP proxy between a worker and its database that loses what a test tells it to lose."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from psycopg import conninfo

_COMMIT = b"COMMIT\0"


class Proxy:
    """Listens on loopback and passes everything on, until it is told otherwise."""

    def __init__(self, dsn: str) -> None:
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lose: list[str] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        """The way through the proxy; in clear text, so that it can see COMMIT."""
        host, port = self._listener.getsockname()
        changed: dict[str, Any] = {"host": host, "port": port, "sslmode": "disable"}
        return conninfo.make_conninfo("", **(self._parameters | changed))

    def lose_reply_to_commit(self) -> None:
        """Let the next COMMIT through, wait for its answer, and cut the connection instead."""
        self._lose.append("reply")

    def lose_commit(self) -> None:
        """Cut the connection when the next COMMIT comes, and do not pass it on."""
        self._lose.append("request")

    def freeze(self) -> None:
        """Let every connection there is stay open and silent; new ones are not concerned."""
        self._silent.update(self._pairs)

    def refuse_new(self) -> None:
        """Accept no more connections; those that there are stay."""
        _close(self._listener)

    def cut(self) -> None:
        """Cut every connection there is."""
        for pair in self._pairs:
            _close(*pair)
        self._pairs.clear()

    def close(self) -> None:
        """Cut every connection, and accept no more."""
        self.refuse_new()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(
                    (str(self._parameters["host"]), int(str(self._parameters["port"])))
                )
                self._pairs.append((client, server))
                for pump in (self._requests, self._replies):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self._pass(client, server, client.recv(65536)):
                if self._lose and _COMMIT in data:
                    if self._lose.pop(0) == "request":
                        break
                    # The worker sees the connection end; whatever the server answers is lost.
                    client.shutdown(socket.SHUT_WR)
                server.sendall(data)
        _close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self._pass(client, server, server.recv(65536)):
                client.sendall(data)
        _close(client, server)

    def _pass(self, client: socket.socket, server: socket.socket, data: bytes) -> bytes:
        """The data; on a silent connection nothing, and not before the client closes it."""
        while (client, server) in self._silent and data:
            data = client.recv(65536)
        return data


def _close(*sockets: socket.socket) -> None:
    for end in sockets:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def proxy_to(dsn: str) -> Iterator[Proxy]:
    """A proxy to the server that `dsn` names."""
    proxy = Proxy(dsn)
    try:
        yield proxy
    finally:
        proxy.close()
