"""What tests share: the database under test, its keys, and waiting for a state of the server."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import random
import shutil
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import conninfo, sql

from pgfence import embedded, install, tokens
from pgfence.model.bundle import TrustBundle, TrustKey, sign_bundle
from pgfence.model.grant import Grant
from pgfence.model.signature import raw_public_key

#: Seconds until what has not come counts as missing; a machine under load is slow, not wrong.
PATIENCE = 60.0

AUDIENCE = "billing"
ROLE_PASSWORD = "only for tests"
LOGIN_ROLES = ("dba", "billing_owner", "worker_a", "worker_b", "registry", "auditor", "outsider")
#: Of each set of keys what the server has computed when their bundle was first installed, which
#: takes a second (seven on PostgreSQL 14): a table's name and its rows, for the next database.
COMBS: dict[str, dict[str, bytes]] = {}
GROUPS = {
    "billing_owner": "pgfence_app",
    "worker_a": "pgfence_app",
    "worker_b": "pgfence_app",
    "registry": "pgfence_registry",
    "auditor": "pgfence_auditor",
}
WORKLOADS = {"worker_a": "worker-a", "worker_b": "worker-b"}


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; where PGFENCE_REQUIRE_ALL=1 is set, as in CI, fail instead."""
    if os.environ.get("PGFENCE_REQUIRE_ALL") == "1":
        pytest.fail(f"PGFENCE_REQUIRE_ALL=1: {reason}")
    pytest.skip(reason)


def fast_folder() -> Path | None:
    """Where servers for tests put their data: in memory if there is room, else where it is usual.

    A new database is 300 files, which take 20 ms in memory and 300 ms on some disks.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30:
        return memory
    return None


def programs_under_test() -> Path:
    """The folder with the PostgreSQL under test: PGFENCE_TEST_PG_BIN, else the wheel's.

    Raises EmbeddedServerError where there is none.
    """
    folder = os.environ.get("PGFENCE_TEST_PG_BIN")
    return Path(folder) if folder else embedded.wheel_bin_dir()


def free_ports(count: int) -> list[int]:
    """So many ports of loopback that nobody listens on, and that are ours until this process ends.

    They are from below those that a system gives to whoever wants any, or one might be given away
    before the server for which it was chosen has bound it, or while that server is restarted. From
    other processes of the tests a UDP socket of the same number keeps it, which nobody uses.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), ExitStack() as stack:
            mark = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            mark.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
            stack.pop_all()
            mark.detach()  # stays open
            ports.append(port)
    return ports


def json_lines(file: Path) -> list[Any]:
    """What a process has written there so far; without a last line that it is still writing."""
    *whole, _ = file.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def listens(port: int) -> bool:
    """Whether somebody listens on the port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Keys:
    """The private keys behind the trust bundle of the test databases: tests can forge anything."""

    root: Ed25519PrivateKey
    grant: Ed25519PrivateKey
    status: Ed25519PrivateKey


def make_keys() -> Keys:
    """The same keys in every run."""

    def key(purpose: str) -> Ed25519PrivateKey:
        seed = hashlib.sha256(f"pgfence test key: {purpose}".encode()).digest()
        return Ed25519PrivateKey.from_private_bytes(seed)

    return Keys(root=key("root"), grant=key("grant"), status=key("status"))


def make_bundle(keys: Keys, audience: str = AUDIENCE) -> TrustBundle:
    """The first trust bundle of the test databases, with one key for each purpose."""
    valid = {"not_before": 0, "expires_at": 4_102_444_800_000_000}  # to the year 2100
    purposes = {"root": keys.root, "grant": keys.grant, "status": keys.status}
    trusted = [
        TrustKey(purpose=purpose, public_key=raw_public_key(key), **valid)
        for purpose, key in purposes.items()
    ]
    return TrustBundle(
        version=1,
        audience=audience,
        keys=tuple(sorted(trusted, key=lambda key: key.kid)),
        lowest_epoch=1,
        root_threshold=1,
        issued_at=valid["not_before"],
        expires_at=valid["expires_at"],
    )


@dataclass(frozen=True)
class TestServer:
    """The server under test. dsn: its superuser's. log_file: None where we cannot read it."""

    __test__ = False

    dsn: str
    log_file: Path | None = None
    #: A superuser's session that makes and drops databases, where one stays for it.
    administrator: psycopg.Connection[Any] | None = field(default=None, repr=False)

    @contextmanager
    def administered(self) -> Iterator[psycopg.Connection[Any]]:
        """The superuser's session in autocommit: the one that stays, else a new one."""
        if self.administrator is not None:
            yield self.administrator
        else:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                yield conn

    def log(self) -> str:
        """What the server has logged so far; skips the test where that cannot be read."""
        if self.log_file is None:
            unavailable("this server's log cannot be read from here")
        return self.log_file.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Database:
    """One database on the server under test."""

    server: TestServer
    name: str
    _connections: list[psycopg.Connection[Any]] = field(default_factory=list, repr=False)

    def dsn(self, role: str | None = None) -> str:
        """How a role connects, as a URL; None is the superuser."""
        parameters = conninfo.conninfo_to_dict(self.server.dsn)
        user, password = parameters.pop("user", ""), parameters.pop("password", "")
        if role:
            user, password = role, ROLE_PASSWORD
        parameters.pop("dbname", None)
        login = f"{quote(str(user), safe='')}:{quote(str(password), safe='')}"
        return f"postgresql://{login}@/{self.name}?{urlencode(parameters)}"

    def connect(
        self, role: str | None = None, *, autocommit: bool = True, **parameters: Any
    ) -> psycopg.Connection[Any]:
        """A connection as the role (None: the superuser); closed at the end of the test."""
        conn = psycopg.connect(self.dsn(role), autocommit=autocommit, **parameters)
        self._connections.append(conn)
        return conn

    @cached_property
    def watcher(self) -> psycopg.Connection[Any]:
        """A superuser's session that looks what is there, until the end of the test."""
        return self.connect()

    def close(self) -> None:
        """Close the connections that `connect` made."""
        for conn in self._connections:
            conn.close()

    def drop(self) -> None:
        """Close the connections that `connect` made, end all others, and drop the database."""
        self.close()
        with self.server.administered() as admin:
            prepared = admin.execute(
                "select gid from pg_prepared_xacts where database = %s", [self.name]
            ).fetchall()
            if prepared:
                with psycopg.connect(self.dsn(), autocommit=True) as conn:
                    for (gid,) in prepared:
                        conn.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
            # Where somebody is left, DROP DATABASE looks again after a tenth of a second; to end
            # takes a session a few milliseconds.
            end_all = (
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s"
            )
            wait_until(lambda: _one(admin, end_all, [self.name]) == 0, "the sessions have ended")
            name = sql.Identifier(self.name)
            _once_nobody_is_left(admin, sql.SQL("drop database {} with (force)").format(name))


def _once_nobody_is_left(admin: psycopg.Connection[Any], statement: sql.Composed) -> None:
    """Run what waits for the sessions of a database to end: the server does so for 5 seconds, and
    each of them ends when it is its turn to run.
    """

    def done() -> bool:
        try:
            admin.execute(statement)
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(done, "the database has no sessions")


def create_login_roles(server: TestServer) -> None:
    """The roles of LOGIN_ROLES; `dba` may create roles."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        for role in LOGIN_ROLES:
            name = sql.Identifier(role)
            if conn.execute("select from pg_roles where rolname = %s", [role]).fetchone() is None:
                conn.execute(sql.SQL("create role {}").format(name))
            conn.execute(
                sql.SQL("alter role {} login {} password {}").format(
                    name,
                    sql.SQL("createrole" if role == "dba" else ""),
                    sql.Literal(quick_to_check(ROLE_PASSWORD)),
                )
            )


def set_for_roles(database: Database, setting: str, value: str) -> None:
    """What a DBA sets for the login roles, in this database: new sessions begin with it."""
    for role in LOGIN_ROLES:
        database.watcher.execute(
            sql.SQL("alter role {} in database {} set {} = {}").format(
                sql.Identifier(role),
                sql.Identifier(database.name),
                sql.Identifier(setting),
                sql.Literal(value),
            )
        )


def quick_to_check(password: str) -> str:
    """As PostgreSQL keeps a password, but for one round of hashing instead of 4096.

    So many rounds take a client 2.5 ms, and a run of the tests connects tens of thousands of times.
    """
    salt = b"salt"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client_key, server_key = (
        hmac.digest(salted, name, "sha256") for name in (b"Client Key", b"Server Key")
    )
    kept = (
        b64encode(part).decode() for part in (salt, hashlib.sha256(client_key).digest(), server_key)
    )
    return "SCRAM-SHA-256$1:{}${}:{}".format(*kept)


def create_database(server: TestServer, name: str, *, template: str = "template1") -> Database:
    """A database in which `dba` may make schemas, and `billing_owner` tables in public."""
    with server.administered() as admin:
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        create = sql.SQL("create database {name} template {template}").format(**names)
        if (
            admin.info.server_version >= 150000
        ):  # before, it is the only way; it takes half the time
            create += sql.SQL(" strategy file_copy")
        _once_nobody_is_left(admin, create)
        admin.execute(sql.SQL("grant create on database {name} to dba").format(**names))
    database = Database(server, name)
    if template == "template1":
        with psycopg.connect(database.dsn(), autocommit=True) as conn:
            conn.execute("revoke create on schema public from public")
            conn.execute("grant create on schema public to billing_owner")
    return database


def install_from_manifest(database: Database) -> None:
    """Run the files of sql/manifest.txt as `dba`, who is no superuser, in one transaction."""
    with psycopg.connect(database.dsn("dba")) as conn:
        for path in install.manifest_files():
            try:
                conn.execute(_source(path))
            except psycopg.Error as error:
                error.add_note(f"in {path}")
                raise


def _source(path: Path) -> str:
    """A file of sql/, with the bug that PGFENCE_PLANTED_BUG asks for (see test_planted_bugs.py)."""
    source = path.read_text(encoding="utf-8")
    for file, right, wrong in json.loads(os.environ.get("PGFENCE_PLANTED_BUG", "[]")):
        if path.as_posix().endswith(file):
            assert right in source
            source = source.replace(right, wrong)
    return source


def create_guarded_database(
    server: TestServer, name: str, keys: Keys, audience: str = AUDIENCE
) -> Database:
    """A database with pgfence, trust bundle and workloads; the server has the login roles."""
    database = create_database(server, name)
    install_from_manifest(database)
    configure(database, keys, audience)
    return database


def configure(database: Database, keys: Keys, audience: str = AUDIENCE) -> None:
    """Groups and workloads of the login roles, and the first trust bundle."""
    with psycopg.connect(database.dsn("dba")) as conn:
        for role, group in GROUPS.items():
            conn.execute(
                sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(role))
            )
        bundle = make_bundle(keys, audience)
        combs = COMBS.setdefault("".join(key.kid for key in bundle.keys), {})
        conn.execute("set local role pgfence_owner")
        for table, rows in combs.items():
            into = sql.SQL("copy pgfence.{} from stdin").format(sql.Identifier(table))
            with conn.cursor().copy(into) as copy:
                copy.write(rows)
        conn.execute("reset role")
        conn.execute(
            "select pgfence.install_trust_bundle(%s, %s)",
            [bundle.document, [sign_bundle(bundle.document, keys.root)]],
        )
        if not combs:
            conn.execute("set local role pgfence_owner")
            for table in ("ed25519_keys", "ed25519_points"):
                out = sql.SQL("copy pgfence.{} to stdout").format(sql.Identifier(table))
                with conn.cursor().copy(out) as copy:
                    combs[table] = b"".join(bytes(row) for row in copy)
            conn.execute("reset role")
        for role, workload in WORKLOADS.items():
            conn.execute("select pgfence.add_workload(%s, %s)", [workload, role])


def rotate(database: Database, bundle: TrustBundle, *roots: Ed25519PrivateKey) -> None:
    """Install a trust bundle as `dba`, signed by `roots`."""
    with psycopg.connect(database.dsn("dba"), autocommit=True) as conn:
        conn.execute(
            "select pgfence.install_trust_bundle(%s, %s)",
            [bundle.document, [sign_bundle(bundle.document, root) for root in roots]],
        )


@contextmanager
def copied(template: Database, name: str) -> Iterator[Database]:
    """A copy of a database with pgfence, which is dropped at the end."""
    database = create_database(template.server, name, template=template.name)
    record_identity(database)
    try:
        yield database
    finally:
        database.drop()


def record_identity(database: Database) -> None:
    """Make a copied database itself again, so that R39 takes it for what it is: a fresh one."""
    with psycopg.connect(database.dsn("dba")) as conn:
        conn.execute("set local role pgfence_owner")
        conn.execute(
            "update pgfence.configuration set database_oid = i.database_oid"
            " from pgfence._database_identity() as i"
        )


@dataclass(frozen=True)
class Issued:
    """A signed grant, and how the registry knows it."""

    token: str
    lease: str
    request_id: str
    operation_root: str
    fence_token: int


def issue(
    database: Database,
    role: str,
    resource: str,
    *,
    request_id: str | None = None,
    operation_class: str = "settle",
    arguments: str = "{}",
    ttl_ms: int = 600_000,
    continues_root: str = "",
) -> Issued:
    """Let `role` request a free resource, sign the grant as the registry would, and return it."""
    request_id = request_id or f"request-{next(_numbers)}"
    with psycopg.connect(database.dsn(role), autocommit=True) as conn:
        root = _one(
            conn,
            "select pgfence.operation_root(%s, %s, %s, %s)",
            [resource, operation_class, request_id, arguments],
        )
        request: list[Any] = [request_id, resource, operation_class, root, ttl_ms, continues_root]
        ask = "select {} from pgfence_registry.request(%s, %s, %s, %s, %s, %s)"
        state = _one(conn, ask.format("state"), request)
        assert state in {"SIGNING", "HELD"}, f"{resource} is not free: {state}"
        sign_pending(database)
        lease, token, fence_token = _row(conn, ask.format("lease, token, fence_token"), request)
    return Issued(token, lease, request_id, root, fence_token)


def sign_pending(database: Database, session: psycopg.Connection[Any] | None = None) -> None:
    """Sign every decided grant with the test's key, as `registry`: in its session, or a new one.

    A registry process that runs besides may be signing one just now; then its row is skipped.
    """
    key = make_keys().grant
    with registry_session(database, session) as conn:

        def sign(lease: str, message: str) -> bool:
            token = tokens.sign(message.encode(), Grant.SCHEMA, key)
            signed = _one(conn, "select pgfence_registry.record_signature(%s, %s)", [lease, token])
            return bool(signed)

        def none_is_left() -> bool:
            pending = conn.execute("select lease, message from pgfence_registry.unsigned_grants()")
            return all(sign(lease, message) for lease, message in pending.fetchall())

        wait_until(none_is_left, "every grant is signed")


@contextmanager
def registry_session(
    database: Database, session: psycopg.Connection[Any] | None
) -> Iterator[psycopg.Connection[Any]]:
    """The session of `registry` that is given, else a new one."""
    if session is not None:
        yield session
    else:
        with psycopg.connect(database.dsn("registry"), autocommit=True) as conn:
            yield conn


_numbers = itertools.count(1)


def _row(conn: psycopg.Connection[Any], query: str, parameters: list[Any]) -> Any:
    row = conn.execute(query, parameters).fetchone()
    assert row is not None
    return row


def _one(conn: psycopg.Connection[Any], query: str, parameters: list[Any]) -> Any:
    return _row(conn, query, parameters)[0]


def wait_until(condition: Callable[[], bool], what: str, *, timeout: float = PATIENCE) -> None:
    """Return when condition() is true; fail naming `what` when it is not within timeout seconds."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        if waited > timeout:
            pytest.fail(f"waited {timeout} s in vain: {what}")
        time.sleep(min(max(0.005, waited / 20), 0.03))  # others need the processor


def wait_until_blocked(
    conn: psycopg.Connection[Any], pid: int, *, timeout: float = PATIENCE
) -> list[int]:
    """Return when backend `pid` waits for a lock; the backends that hold it up.

    conn: a connection in autocommit that takes no part in the race.
    """
    blockers: list[int] = []

    def blocked() -> bool:
        row = conn.execute("select pg_catalog.pg_blocking_pids(%s)", [pid]).fetchone()
        assert row is not None
        blockers[:] = row[0]
        return bool(blockers)

    wait_until(blocked, f"backend {pid} waits for a lock", timeout=timeout)
    return blockers


def wait_until_state(
    conn: psycopg.Connection[Any], pid: int, state: str | None, *, timeout: float = PATIENCE
) -> None:
    """Return when pg_stat_activity shows backend `pid` in `state`; None: when it has ended."""

    def reached() -> bool:
        row = conn.execute(
            "select state from pg_catalog.pg_stat_activity where pid = %s", [pid]
        ).fetchone()
        return (row[0] if row else None) == state

    wait_until(reached, f"backend {pid} is {state or 'gone'}", timeout=timeout)
