"""Asks the bank for all balances at once: python -m adopt.before.balances"""

import asyncio

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from ..models import Account, url


async def main() -> None:
    engine = create_async_engine(url("asyncpg"))
    sessions = async_sessionmaker(engine)
    async with sessions() as session:
        accounts = (await session.scalars(select(Account.account_id))).all()
    await asyncio.gather(*(refresh(sessions, account) for account in accounts))
    await engine.dispose()


async def refresh(sessions: async_sessionmaker[AsyncSession], account_id: int) -> None:
    cents = await ask_bank(account_id)
    async with sessions.begin() as session:
        await write(session, account_id, cents)


async def ask_bank(account_id: int) -> int:
    """What the bank says. Slow, in earnest."""
    await asyncio.sleep(0)
    return 1000 * account_id


async def write(session: AsyncSession, account_id: int, cents: int) -> None:
    """The balance."""
    (await session.get_one(Account, account_id)).balance_cents = cents


if __name__ == "__main__":
    asyncio.run(main())
