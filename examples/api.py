"""An HTTP endpoint that writes for whoever shows a grant, with FastAPI and SQLAlchemy.

    PGFENCE_DSN=postgresql://... uvicorn api:make_app --factory

    POST /invoice-batches/2026-07-19/pages/3
    Pgfence-Grant: v4.public....
    Pgfence-Segment: 3

A worker holds a batch of invoices (invoices.sql) and has this service settle it, page by page. A
request may come late (it lay in a proxy while the worker lost its lease), or twice (the answer to
the first was lost). The service keeps no state for that and asks nobody: the transaction in which
it writes shows the grant to PostgreSQL. It logs in as the worker's workload.

200: settled, by this request or by one before it. 409: refused, the body says why and what to do.
422: no page or segment has that number.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated

from fastapi import FastAPI, Header, Path, Request
from fastapi.responses import JSONResponse
from sqlalchemy import ForeignKey, create_engine, literal_column, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import pgfence
from pgfence.errors import translated_errors

PAGE = 200
LARGEST = 2**53 - 1  # the largest number of a segment


class Base(DeclarativeBase):
    """The application's tables."""


class Invoice(Base):
    """Behind the guard: its resource is invoice-batch/{batch_date}."""

    __tablename__ = "invoices"

    invoice_id: Mapped[int] = mapped_column(primary_key=True)
    batch_date: Mapped[date]
    charged_cents: Mapped[int | None]
    charged_by: Mapped[str | None]


class Settlement(Base):
    """A view: what should be charged."""

    __tablename__ = "settlement"

    invoice_id: Mapped[int] = mapped_column(ForeignKey(Invoice.invoice_id), primary_key=True)
    due_cents: Mapped[int]


def make_app() -> FastAPI:
    """The application, for the database that PGFENCE_DSN names."""
    url = make_url(os.environ["PGFENCE_DSN"]).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    fence = pgfence.connect(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        fence.close()
        engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/invoice-batches/{batch_date}/pages/{page}")
    def settle_page(
        batch_date: date,
        page: Annotated[int, Path(ge=1, le=LARGEST)],
        pgfence_grant: Annotated[str, Header()],
        pgfence_segment: Annotated[int, Header(ge=1, le=LARGEST)],
    ) -> dict[str, str | None]:
        """Settle one page of a batch."""
        payload = {"batch_date": batch_date.isoformat(), "page": page}
        with translated_errors(), Session(engine) as session, session.begin():
            verdict = fence.apply(session, pgfence_grant, pgfence_segment, payload)
            if verdict.lets_write:
                settle(session, batch_date, page)
        # It is committed: the rows and their receipt, or the evidence of a refusal.
        verdict.require()
        return {"verdict": verdict.verdict, "receipt": verdict.receipt}

    @app.exception_handler(pgfence.RefusedError)
    @app.exception_handler(pgfence.LeaseEndedError)
    @app.exception_handler(pgfence.NotAdmittedError)  # the grant is good, for another batch
    def refused(_: Request, error: pgfence.PgfenceError) -> JSONResponse:
        """Nothing was written."""
        name = error.code.name if error.code else type(error).__name__
        body = {"error": name, "says": str(error), "next_step": error.next_step}
        return JSONResponse(body, status_code=409)

    return app


def settle(session: Session, batch_date: date, page: int) -> None:
    """Charge the invoices of a page."""
    rows = session.execute(
        select(Invoice, Settlement.due_cents)
        .join(Settlement)
        .where(Invoice.batch_date == batch_date)
        .order_by(Invoice.invoice_id)
        .limit(PAGE)
        .offset(PAGE * (page - 1))
    )
    for invoice, due_cents in rows:
        invoice.charged_cents = due_cents
        invoice.charged_by = literal_column("session_user")
