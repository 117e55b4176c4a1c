"""A lock that runs out, as many services have one, here or in Redis."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import TextClause, text
from sqlalchemy.orm import Session, sessionmaker

TAKE = text(
    "insert into locks values (:name, :holder, now() + interval '30 s') on conflict (name)"
    " do update set holder = :holder, until = excluded.until where locks.until < now()"
    " returning true"
)
LOOK = text(
    "update locks set until = now() + interval '30 s'"
    " where name = :name and holder = :holder and until > now() returning true"
)
FREE = text("delete from locks where name = :name and holder = :holder")


@contextmanager
def locked(sessions: sessionmaker[Session], name: str) -> Iterator[Callable[[], None]]:
    """Hold the lock; call what it gives before each write: it looks, and prolongs."""
    holder = uuid.uuid4().hex

    def ask(query: TextClause) -> None:
        with sessions.begin() as session:
            if not session.scalar(query, {"name": name, "holder": holder}):
                raise SystemExit(f"{name} is another's")

    ask(TAKE)
    yield lambda: ask(LOOK)
    with sessions.begin() as session:
        session.execute(FREE, {"name": name, "holder": holder})
