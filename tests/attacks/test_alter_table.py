"""Every form of ALTER TABLE, run by the owner of a protected table: the guard holds, or the next
admission is refused and says what to do (R23, R25). What names no column of the template and takes
nothing from the guard stops nobody."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import DAY, Writer, make_table, protect, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R23", "R25")

HELD, NOTICED = "held", "noticed at the next admission"

#: {t}: the relation, {top}: the protected table, {n}: a number of its own. A number in front: since
#: which version. In the order of PostgreSQL's documentation.
COLUMNS = {
    "alter table {top} add column note text default 'x'": HELD,
    "alter table {top} drop column amount": HELD,
    "alter table {top} alter column amount type text": HELD,
    "alter table {top} alter column amount set default 0": HELD,
    "alter table {top} alter column amount set not null": HELD,
    "alter table {top} alter column amount set statistics 10": HELD,
    "alter table {top} alter column batch_date set (n_distinct = 1)": HELD,
    "alter table {top} alter column amount set storage plain": HELD,
    "alter table {top} alter column amount set compression pglz": HELD,
    "alter table {top} rename column amount to price": HELD,
    "alter table {top} rename column batch_date to day": NOTICED,
}
RELATION = {
    "alter table {t} add check (amount > 5) not valid": HELD,
    "18 alter table {top} add constraint c check (amount > 5) not enforced": HELD,
    "18 alter table {top} add constraint c not null amount not valid": HELD,
    "18 alter table {t} add constraint c foreign key (id) references numbers not enforced": HELD,
    "alter table {t} add constraint c foreign key (id) references numbers;"
    " alter table {t} alter constraint c deferrable initially deferred": HELD,
    "alter table {t} disable trigger user": NOTICED,
    "alter table {t} disable trigger user; alter table {t} enable trigger user": NOTICED,
    "alter table {t} enable row level security": HELD,
    "alter table {t} force row level security": HELD,
    "alter table {t} set tablespace pg_default": HELD,
    "alter table {t} replica identity full": HELD,
    "alter table {t} rename to renamed_{n}": HELD,
    "alter table {t} set schema elsewhere": HELD,
    "alter table {t} owner to outsider": HELD,
    "grant trigger on {t} to worker_b": NOTICED,
    "create rule w as on update to {t} do also select 1": NOTICED,
    "create rule w as on insert to {t} where new.id > 9 do instead nothing": NOTICED,
}
ORDINARY = {
    "alter table {t} cluster on {t}_pkey": HELD,
    "15 alter table {t} set access method heap": HELD,
    "alter table {t} set unlogged": NOTICED,
    "alter table {t} set unlogged; alter table {t} set logged": HELD,
    "alter table {t} set (fillfactor = 50, autovacuum_enabled = false)": HELD,
    "vacuum full {t}": HELD,
}
PLAIN = {
    "alter table {top} add column key integer generated always as identity": HELD,
    "alter table {t} drop column batch_date": NOTICED,
    "alter table {t} drop column batch_date; alter table {t} add batch_date date": HELD,
    "18 alter table {t} drop column batch_date;"
    " alter table {t} add batch_date date generated always as (null)": NOTICED,
    "alter table {t} alter column batch_date type timestamp": NOTICED,
    "alter table {t} alter column batch_date type timestamp;"
    " alter table {t} alter column batch_date type date": HELD,
    "alter table {t} disable trigger user;"
    " alter table {t} enable always trigger pgfence_guard_row": NOTICED,
    "create table child_{n} () inherits ({t})": NOTICED,
    "alter table {t} inherit bare": NOTICED,
    "alter table {t} inherit bare; alter table {t} no inherit bare": HELD,
    "alter table {t} of invoice": HELD,
    "alter table {t} of invoice; alter table {t} not of": HELD,
    "create table parts_{n} (like {t}) partition by list (batch_date);"
    " alter table parts_{n} attach partition {t} default": NOTICED,
    "create table parts_{n} (like {t}) partition by list (batch_date);"
    " alter table parts_{n} attach partition {t} default;"
    " alter table parts_{n} detach partition {t}": HELD,
    "alter table {t} add unique (id)": HELD,
    "alter table {t} drop constraint {t}_pkey": HELD,
}
PARTITIONED = {
    "17 alter table {top} add column key integer generated always as identity": HELD,
    "alter table {top} detach partition {top}_1": HELD,
    "alter table {top} attach partition {top}_more for values in ('2026-08-01')": HELD,
    "create table {top}_default partition of {top} default": HELD,
    "create table parts_{n} (like {t}) partition by list (batch_date);"
    " alter table parts_{n} attach partition {t} default": NOTICED,
}
PARTITION = {
    "alter table {t} disable trigger user;"  # the row trigger is enough
    " alter table {t} enable always trigger pgfence_guard_row": HELD,
    "alter table {t} disable trigger pgfence_guard_row": NOTICED,
    "alter table {t} enable trigger pgfence_guard_row": NOTICED,
    "alter table {t} set unlogged": NOTICED,
    "alter table {t} rename to renamed_{n}": HELD,
    "alter table {t} owner to outsider": HELD,
    "grant trigger on {t} to worker_b": NOTICED,
    "create rule w as on update to {t} do also select 1": NOTICED,
}
KINDS = {
    "plain": COLUMNS | RELATION | ORDINARY | PLAIN,
    "partitioned": COLUMNS | RELATION | PARTITIONED,
    "partition": RELATION | PARTITION,
    "partition attached later": PARTITION,
}


def make(owner: psycopg.Connection[Any], top: str, kind: str) -> str:
    """The protected table `top`, its rows named `top`/date; the relation to be altered."""
    make_table(owner, top, "plain" if kind == "plain" else "partitioned")
    run(owner, f"alter table {top} alter amount drop not null, alter amount set default 6")
    run(owner, f"create table {top}_more (like {top} including indexes)")
    run(owner, f"grant select, insert, update, delete on {top}_more to pgfence_app")
    if kind == "partition attached later":
        run(owner, f"alter table {top} detach partition {top}_0")
    protect(owner, top, f"{top}/{{batch_date}}")
    if kind == "partition attached later":
        run(owner, f"alter table {top} attach partition {top}_0 for values in ('{DAY}')")
    return f"{top}_0" if kind.startswith("partition ") or kind == "partition" else top


def outcome(
    superuser: psycopg.Connection[Any], owner: psycopg.Connection[Any], writer: Writer, top: str
) -> str:
    """What became of the guard: HELD, NOTICED, or how it was gone round."""
    resource = f"{top}/{DAY}"
    try:
        with writer.admitted(resource):
            pass
    except psycopg.Error as error:
        assert error.sqlstate == "PF202", error
        assert "select pgfence.protect(" in str(error.diag.message_hint)
        return NOTICED
    relations = run(
        owner,
        "select relation::text, is_partitioned from pgfence.guards where template like"
        f" '{top}/%' and (relation = protected_table or relation::text ~ '_0$|renamed')",
    ).fetchall()
    for name, _ in relations:
        for write in (
            f"insert into {name} (id, batch_date) values (9, '{DAY}')",
            f"update {name} set id = 10",
            f"delete from {name}",
        ):
            with superuser.transaction(force_rollback=True):
                try:
                    with superuser.transaction():
                        run(superuser, write)
                except psycopg.Error as error:
                    if error.sqlstate == "PF201":
                        continue
                    return f"{write}: {error}"
                return f"{write}: done"
    return HELD


@pytest.mark.parametrize("kind", KINDS)
def test_r25_form_of_alter_table_takes_nothing_from_the_guard_or_is_noticed(
    database: Database, keys: Keys, kind: str
) -> None:
    owner, superuser, writer = (
        database.connect("billing_owner"),
        database.connect(),
        Writer.login(database, keys),
    )
    run(superuser, "create schema elsewhere authorization billing_owner")
    for statement in (
        "create table bare ()",
        "create type invoice as (id integer, batch_date date, amount numeric)",
        "create table numbers (id integer primary key)",
        "insert into numbers select generate_series(1, 20)",
    ):
        run(owner, statement)
    found, expected = {}, {}
    for number, (form, wanted) in enumerate(KINDS[kind].items()):
        since, statements = (int(form[:2]), form[3:]) if form[:2].isdigit() else (14, form)
        if owner.info.server_version < since * 10_000:
            continue
        top = f"t{number}"
        relation = make(owner, top, kind)
        ((oid,),) = run(owner, f"select '{top}'::regclass::oid").fetchall()
        with writer.admitted(f"{top}/{DAY}") as conn:
            run(conn, f"insert into {top} values (1, '{DAY}', 10)")
        for statement in statements.split(";"):
            try:
                run(
                    superuser if "owner to" in statement else owner,
                    statement.format(t=relation, top=top, n=number),
                )
            except psycopg.Error as error:
                found[form] = f"not done: {error}"
        if form not in found:
            found[form] = outcome(superuser, owner, writer, top)
        # every admission looks at every table of its prefix, and there would be many
        run(superuser, f"select pgfence.unprotect({oid})")
        expected[form] = wanted
    assert {form: what for form, what in found.items() if what != expected[form]} == {}
