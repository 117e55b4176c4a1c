"""What a process remembers of the segments that were acknowledged to it (R47)."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from pgfence.model.receipt import Receipt

#: Receipts that are remembered: of each resource the latest, and of all resources together.
_OF_EACH, _OF_ALL = 1_000, 100_000


class Acknowledged:
    """The latest receipts of each resource, for several threads.

    When memory is short the resource that was written least recently is forgotten first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipts: OrderedDict[str, dict[str, Receipt]] = OrderedDict()
        self._count = 0

    def add(self, receipts: Iterable[Receipt]) -> None:
        """Remember receipts that the database has committed."""
        with self._lock:
            for receipt in receipts:
                known = self._receipts.setdefault(receipt.resource, {})
                self._receipts.move_to_end(receipt.resource)
                if receipt.digest and receipt.digest not in known:
                    known[receipt.digest] = receipt
                    self._count += 1
                if len(known) > _OF_EACH:
                    del known[next(iter(known))]
                    self._count -= 1
            while self._count > _OF_ALL:
                _, forgotten = self._receipts.popitem(last=False)
                self._count -= len(forgotten)

    def of(self, resource: str) -> list[Receipt]:
        """The receipts of a resource that are remembered, in the order of its chain."""
        with self._lock:
            known = list(self._receipts.get(resource, {}).values())
        return sorted(known, key=lambda receipt: (receipt.fence_token, receipt.segment_seq))

    def forget(self, receipts: Iterable[Receipt]) -> None:
        """Forget these, and remember the rest."""
        with self._lock:
            for receipt in receipts:
                if self._receipts.get(receipt.resource, {}).pop(receipt.digest, None):
                    self._count -= 1
