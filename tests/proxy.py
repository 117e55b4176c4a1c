"""A TCP proxy between a worker and its database that loses what a test tells it to lose."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from psycopg import conninfo

#: COMMIT as a message of the simple protocol: its type, its length, its text.
_COMMIT = re.compile(rb"Q...[\x0b\x0c]COMMIT;?\0", re.DOTALL)
#: The longest COMMIT, and the answer to it: CommandComplete and ReadyForQuery, in bytes.
COMMIT_BYTES, REPLY_BYTES = 13, 18
Direction = Literal["requests", "replies"]


class Proxy:
    """Listens on loopback and passes everything on, until it is told otherwise."""

    def __init__(self, dsn: str) -> None:
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut: list[tuple[Direction, int]] = []
        #: Bytes of a reply that are still passed on before the connection is cut.
        self._left: dict[socket.socket, int] = {}
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[tuple[socket.socket, socket.socket]] = set()
        self._doomed: set[tuple[socket.socket, socket.socket]] = set()
        self._said_in_vain = threading.Event()
        self._last_words: bytes | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        """The way through the proxy; in clear text, so that it can see COMMIT."""
        host, port = self._listener.getsockname()
        changed: dict[str, Any] = {"host": host, "port": port, "sslmode": "disable"}
        return conninfo.make_conninfo("", **(self._parameters | changed))

    def lose_reply_to_commit(self) -> None:
        """Let the next COMMIT through, wait for its answer, and cut the connection instead."""
        self.cut_commit("replies", 0)

    def lose_commit(self) -> None:
        """Cut the connection when the next COMMIT comes, and do not pass it on."""
        self.cut_commit("requests", 0)

    def cut_commit(self, direction: Direction, at: int) -> None:
        """Cut the connection after so many bytes of the next COMMIT, or of the answer to it."""
        self._cut.append((direction, at))

    def freeze(self) -> None:
        """Let every connection there is stay open and silent; new ones are not concerned."""
        self._silent.update(self._pairs)

    def freeze_latest(self) -> threading.Event:
        """The same for the latest connection alone; set when something was said on it in vain."""
        self._silent.add(self._pairs[-1])
        return self._said_in_vain

    def freeze_at(self, words: bytes) -> None:
        """Freeze when a request with these words comes, which is not passed on."""
        self._last_words = words

    def refuse_new(self) -> None:
        """Accept no more connections; those that there are stay."""
        _close(self._listener)

    def cut_when_used(self) -> None:
        """Cut every connection there is at its next request, so that the answer is missing."""
        self._doomed.update(self._pairs)

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
                for end in (client, server):  # or small packets wait 40 ms for each other
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pairs.append((client, server))
                for pump in (self._requests, self._replies):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self._pass(client, server, client.recv(65536)):
                if (client, server) in self._doomed:
                    break
                commit = _COMMIT.search(data) if self._cut else None
                if commit:
                    direction, at = self._cut.pop(0)
                    if direction == "requests":
                        server.sendall(data[: commit.start() + at])
                        break
                    self._left[client] = at
                server.sendall(data)
        _close(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self._pass(client, server, server.recv(65536)):
                left = self._left.get(client)
                client.sendall(data[:left])
                if left is not None:
                    self._left[client] = left - len(data)
                    if left <= len(data):
                        break
        _close(client, server)

    def _pass(self, client: socket.socket, server: socket.socket, data: bytes) -> bytes:
        """The data; on a silent connection nothing, and not before the client closes it."""
        if self._last_words is not None and self._last_words in data:
            self._last_words = None
            self.freeze()
        while (client, server) in self._silent and data:
            self._said_in_vain.set()
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
