"""The registry itself: the default.

The request in SQL is the claim, its queue is the order, and the fence is the token. There is no
other session that could end.
"""

from collections.abc import Callable

from pgfence.coordinators.protocol import Capabilities, Claim, Patience, Standing
from pgfence.errors import InvalidArgumentError

CAPABILITIES = Capabilities("postgres", rising_tokens=True, linearizable=True)


class PostgresClaim:
    """Stands as long as the lease does, which the registry says."""

    token = 0

    def standing(self) -> Standing:
        """Never in doubt by itself."""
        return Standing.HELD

    def listen(self, changed: Callable[[], object]) -> None:
        """Nothing changes."""

    def release(self) -> None:
        """Nothing to do: the lease is released in SQL."""


class PostgresClaimant:
    """Nothing to claim before the registry is asked."""

    capabilities = CAPABILITIES
    waits = False

    def claim(self, directory: str, value: str, ttl: float, patience: Patience) -> Claim:
        """At once."""
        return PostgresClaim()


def claimant(url: str) -> PostgresClaimant:
    """The worker's side."""
    if url != "postgres":
        raise InvalidArgumentError(
            "coordinator 'postgres' takes no address: it is the registry itself",
            hint="Leave it out; a registry in another database is connect(..., registry=DSN).",
        )
    return PostgresClaimant()
