"""Reading what was accepted: where the receipts end, and whether any of them were lost."""

from collections.abc import Sequence

from pgfence import errors
from pgfence.client.protocol.steps import LONGEST_CALL, Batch, Call, Row, Steps, reopening
from pgfence.model.receipt import NOWHERE, Position, Receipt


def position(resource: str, within: float = LONGEST_CALL) -> Steps[Position]:
    """Where the receipts of a resource end; asked for so many seconds."""
    rows = yield from _read(Call("select * from pgfence.position($1)", (resource,)), within)
    return Position(*rows[0]) if rows else NOWHERE


def operation_receipts(
    resource: str, operation_root: str, after: int
) -> Steps[list[tuple[int, str]]]:
    """Numbers and payload digests of the receipts of an operation and of those that it took up:
    the first ten thousand after number `after`.
    """
    call = Call(
        "select segment_number, payload_digest from pgfence.operation_receipts($1, $2, $3)",
        (resource, operation_root, after),
    )
    return [(number, digest) for number, digest in (yield from _read(call))]


def refuse_lost(resource: str, acknowledged: Sequence[Receipt]) -> Steps[None]:
    """Raise `AcknowledgedSegmentsLostError` if the database has lost any of these receipts (R47).

    acknowledged: receipts of one resource, in the order of its chain: if the last one is there, so
    are those before it.
    """
    if acknowledged and (yield from _missing(resource, acknowledged[-1:])):
        missing = yield from _missing(resource, acknowledged)
        at = yield from position(resource)
        lost = tuple(receipt for receipt in acknowledged if receipt.digest in missing)
        raise errors.AcknowledgedSegmentsLostError(resource, lost, at)


def _missing(resource: str, receipts: Sequence[Receipt]) -> Steps[set[str]]:
    """The digests of those receipts that the database neither has nor has pruned."""
    known = (
        [receipt.operation_root for receipt in receipts],
        [receipt.segment_seq for receipt in receipts],
        [receipt.digest for receipt in receipts],
    )
    call = Call("select digest from pgfence.missing_receipts($1, $2, $3, $4)", (resource, *known))
    return {digest for (digest,) in (yield from _read(call))}


def _read(call: Call, within: float = LONGEST_CALL) -> Steps[Sequence[Row]]:
    """The rows of a call; on a new connection if the old one was lost, or stayed silent so long."""

    def ask() -> Steps[Sequence[Row]]:
        (rows,) = yield Batch((call,), within=within)
        found: Sequence[Row] = rows
        return found

    return (yield from reopening(ask, within))
