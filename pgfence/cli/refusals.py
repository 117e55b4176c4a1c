"""pgfence refusals"""

from pgfence.audit import refusals as audit
from pgfence.cli.output import (
    AUDITOR,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
)


@reported
def refusals(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show what was refused, the latest first, and the quarantine.

    As a role in pgfence_auditor. Attempts of one kind (verdict, grant, role) are one line. What is
    shown is bounded; the server's log has every refusal.
    """
    with database(dsn, AUDITOR) as conn:
        refused, quarantined = audit.refusals(conn), audit.quarantine(conn)
    if as_json:
        print_json({"refusals": refused, "quarantine": quarantined})
        return
    out = console()
    if not refused:
        out.print("nothing was refused")
    else:
        print_table(
            out,
            [
                "verdict", "reason", "resource", "fence", "owner", "role", "segment",
                "times", "last", "in shadow",
            ],
            [
                [
                    r.verdict, r.reason, r.resource, r.fence_token, r.owner, r.session_role,
                    r.last_segment_seq, r.occurrences, r.last_at, r.in_shadow,
                ]
                for r in refused
            ],
        )  # fmt: skip
    if quarantined:
        out.print("Quarantine: other payloads for segments that were accepted before")
        print_table(
            out,
            ["resource", "fence", "segment", "accepted payload", "offered payload", "role", "at"],
            [
                [
                    q.resource, q.fence_token, q.segment_seq, q.accepted_digest[:16],
                    q.offered_digest[:16], q.session_role, q.first_at,
                ]
                for q in quarantined
            ],
        )  # fmt: skip
