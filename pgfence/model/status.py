"""The status proof: short-lived and signed, says that a grant is held (lockStatus.v1, R1)."""

from dataclasses import dataclass
from typing import ClassVar

from pgfence.model.canonical import Claims, is_digest, is_identifier, is_integer, require


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusProof(Claims):
    """The claims of a status proof. Times are microseconds since the epoch, registry's clock.

    Raises `InvalidArgumentError` for a value outside the contract's grammar.
    """

    SCHEMA: ClassVar[str] = "lockStatus.v1"

    #: Name of the guarded database.
    audience: str
    #: The grant that is held (`Grant.digest`).
    grant_digest: str
    #: The registry's revision when it looked.
    revision: int
    issuer_epoch: int
    issued_at: int
    valid_until: int

    def __post_init__(self) -> None:
        require(is_identifier(self.audience), "audience")
        require(is_digest(self.grant_digest), "grant_digest")
        for name in ("revision", "issuer_epoch", "issued_at", "valid_until"):
            require(is_integer(getattr(self, name)), name)
