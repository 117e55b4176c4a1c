"""Reading what was accepted: where the receipts end, and whether any of them were lost."""

from collections.abc import Sequence

from pgfence import errors
from pgfence.client.protocol.steps import Batch, Call, Failed, Steps, rows_of
from pgfence.model.receipt import NOWHERE, Position, Receipt


def position(resource: str) -> Steps[Position]:
    """Where the receipts of a resource end."""
    rows = yield from rows_of(Call("select * from pgfence.position($1)", (resource,)))
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
    return [(number, digest) for number, digest in (yield from rows_of(call))]


def refuse_lost(resource: str, acknowledged: Sequence[Receipt]) -> Steps[None]:
    """Raise `AcknowledgedSegmentsLostError` if the database has lost any of these receipts (R47).

    acknowledged: receipts of one resource, in the order of its chain: if the last one is there, so
    are those before it.
    """
    try:
        if acknowledged and (yield from _missing(resource, acknowledged[-1:])):
            missing = yield from _missing(resource, acknowledged)
            at = yield from position(resource)
            lost = tuple(receipt for receipt in acknowledged if receipt.digest in missing)
            raise errors.AcknowledgedSegmentsLostError(resource, lost, at)
    except Failed as failed:
        failed.rethrow()


def _missing(resource: str, receipts: Sequence[Receipt]) -> Steps[set[str]]:
    """The digests of those receipts that the database neither has nor has pruned."""
    known = (
        [receipt.operation_root for receipt in receipts],
        [receipt.segment_seq for receipt in receipts],
        [receipt.digest for receipt in receipts],
    )
    (rows,) = yield Batch(
        (Call("select digest from pgfence.missing_receipts($1, $2, $3, $4)", (resource, *known)),)
    )
    return {digest for (digest,) in rows}
