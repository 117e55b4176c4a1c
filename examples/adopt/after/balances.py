"""The asyncio worker, behind the fence: python -m adopt.after.balances"""

import asyncio

from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import pgfence

from ..before.balances import ask_bank, write  # as they were
from ..models import Account, url


async def main() -> None:
    engine = create_async_engine(url("asyncpg"))
    sessions = async_sessionmaker(engine)
    async with sessions() as session:
        accounts = (await session.scalars(select(Account.account_id))).all()
    at_once = asyncio.Semaphore(10)  # a lease has a connection of its own

    async def one(account: int) -> None:
        async with at_once:
            await refresh(fence, account)

    async with pgfence.connect_async(sessions) as fence:
        await asyncio.gather(*map(one, accounts))
    await engine.dispose()


async def refresh(fence: pgfence.AsyncFence, account_id: int) -> None:
    async with fence.hold(f"account/{account_id}", operation="refresh", timeout=60) as lease:
        async with lease.while_held():  # a bank that does not answer: cancelled with the lease
            cents = await ask_bank(account_id)
        await lease.apply({"cents": cents}, lambda session: write(session, account_id, cents))


if __name__ == "__main__":
    asyncio.run(main())
