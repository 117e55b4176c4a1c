"""Look for the keys of requests at the lock service: no worker's word counts for it (R37)."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgfence.coordinators.protocol import Holder, Inspector, claim_of, directory
from pgfence.errors import InvalidArgumentError, LockServiceError
from pgfence.model.canonical import is_integer
from pgfence.model.grant import Grant
from pgfence.queries import Connection, rows

_REQUESTS = """
    select workload, request_id, audience, resource, claim, coordinator, term, mark
      from pgfence_registry.requests_to_inspect()
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What became of a request whose key was looked for.

    result: RECORDED, LOOK_AGAIN or FENCE_REGRESSION, as `record_token()` says; None when `problem`
    says why nothing was recorded.
    """

    resource: str
    request_id: str
    coordinator: str
    token: int = 0
    mark: int = 0
    result: str | None = None
    problem: str | None = None


class Witness:
    """Sees who holds, at the lock services that it was given.

    Raises `InvalidArgumentError` for two of one kind.
    """

    def __init__(self, inspectors: Sequence[Inspector] = ()) -> None:
        self._inspectors = {found.capabilities.name: found for found in inspectors}
        if len(self._inspectors) < len(inspectors):
            raise InvalidArgumentError(
                "two URLs are of one kind of lock service, of which there is one",
                hint="Name all members of a cluster in one URL: etcd://etcd-1:2379,etcd-2:2379.",
                rule="R37",
            )
        #: Lock services that did not answer in this round, and are not asked again in it.
        self._silent: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections to the lock services."""
        for inspector in self._inspectors.values():
            inspector.close()

    def record_tokens(self, conn: Connection) -> list[Sighting]:
        """Look for every request that waits to be seen, and record the tokens of those that hold.

        The marks were read before the lock service is, which `record_token()` rests on. This begins
        a new round: a lock service that was silent is asked again.
        """
        sightings = []
        self._silent.clear()
        for row in rows(conn, _REQUESTS):
            workload, request_id, audience, resource, claim, coordinator, term, mark = row
            seen = {"resource": resource, "request_id": request_id, "coordinator": coordinator}
            try:
                holder = self._holder(coordinator, audience, resource)
            except LockServiceError as error:
                sightings.append(Sighting(**seen, problem=str(error)))
                continue
            if holder is None or holder.claim != claim:
                continue
            if not is_integer(holder.token):
                problem = f"token {holder.token} is out of range"
                sightings.append(Sighting(**seen, problem=problem))
                continue
            ((result,),) = rows(
                conn,
                "select pgfence_registry.record_token($1, $2, $3, $4, $5)",
                workload, request_id, term, holder.token, mark,
            )  # fmt: skip
            sightings.append(Sighting(**seen, token=holder.token, mark=mark, result=result))
        return sightings

    def confirms(self, grant: Grant) -> bool:
        """Whether the key that a grant rests on holds its resource now, with that very token.

        Raises `LockServiceError` when that cannot be found out.
        """
        if grant.backend == "postgres":
            return True
        holder = self._holder(grant.backend, grant.audience, grant.resource)
        if holder is None or holder.claim != claim_of(grant.request_id, grant.operation_root):
            return False
        rising = self._inspectors[grant.backend].capabilities.rising_tokens
        return not rising or holder.token == grant.backend_revision

    def _holder(self, coordinator: str, audience: str, resource: str) -> Holder | None:
        if coordinator not in self._inspectors:
            raise LockServiceError(
                f"this registry process cannot ask {coordinator}: start it with --coordinator"
            )
        if coordinator in self._silent:
            raise LockServiceError(self._silent[coordinator])
        try:
            return self._inspectors[coordinator].holder(directory(audience, resource))
        except LockServiceError as error:
            self._silent[coordinator] = str(error)
            raise
