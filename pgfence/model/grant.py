"""The grant: a signed, immutable permission to try to write (lockGrant.v1, R1)."""

from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

from pgfence.errors import InvalidArgumentError
from pgfence.model.canonical import (
    Claims,
    is_identifier,
    is_integer,
    is_operation_root,
    require,
)
from pgfence.model.signature import pae


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Claims):
    """The claims of a grant. Times are microseconds since the epoch on the registry's clock.

    Raises `InvalidArgumentError` for a value outside the contract's grammar.
    """

    SCHEMA: ClassVar[str] = "lockGrant.v1"

    #: Name of the guarded database.
    audience: str
    resource: str
    #: The workload that holds.
    owner: str
    request_id: str
    lease: str
    operation_class: str
    operation_root: str
    #: The root of the operation that this one takes up, or "".
    continues_root: str
    #: From 1, strictly rising for each resource.
    fence_token: int
    #: The coordinator that was asked, and its revision then.
    backend: str
    backend_revision: int
    policy_generation: int
    issuer: str
    issuer_epoch: int
    issued_at: int
    #: How long the lease lasts, in milliseconds.
    ttl_ms: int
    #: Until when the grant itself shows that it is held.
    status_until: int

    def __post_init__(self) -> None:
        for name in (
            "audience",
            "resource",
            "owner",
            "request_id",
            "lease",
            "operation_class",
            "backend",
            "issuer",
        ):
            require(is_identifier(getattr(self, name)), name)
        for name in (
            "backend_revision",
            "policy_generation",
            "issuer_epoch",
            "issued_at",
            "ttl_ms",
            "status_until",
        ):
            require(is_integer(getattr(self, name)), name)
        require(is_integer(self.fence_token, least=1), "fence_token")
        require(is_operation_root(self.operation_root), "operation_root")
        require(
            self.continues_root == "" or is_operation_root(self.continues_root), "continues_root"
        )

    @property
    def digest(self) -> str:
        """What names this grant everywhere: SHA-256 of the message, in hex (R4)."""
        return sha256(self.encode()).hexdigest()


def operation_root(resource: str, operation_class: str, request_id: str, arguments: str) -> str:
    """The name of one operation, as `pgfence.operation_root()` computes it in the database.

    Raises `InvalidArgumentError` for an ID that is not canonical.
    """
    for name, value in (
        ("resource", resource),
        ("operation", operation_class),
        ("request_id", request_id),
    ):
        if not is_identifier(value):
            raise InvalidArgumentError(
                f"{name} {value!r} is not a canonical ID",
                hint="Use 1 to 255 printable ASCII characters without space, double quote or "
                "backslash.",
                rule="R1",
            )
    pieces = [text.encode() for text in (resource, operation_class, request_id, arguments)]
    return "sha256:" + sha256(pae(pieces)).hexdigest()
