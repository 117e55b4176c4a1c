"""Plants known bugs in the SQL, one at a time; the test that must notice has to fail.

Every one of them is a mistake that somebody has made in such a guard. A suite that passes with one
of them in place proves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgfence import install
from tests.support import TestServer

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Bug:
    """In `file` of sql/, `right` becomes `wrong`; `noticed_by` is the test that must fail.

    since: the first major version of PostgreSQL on which the mistake does harm.
    also: file, right and wrong of whatever else must be wrong before the mistake shows.
    """

    file: str
    right: str
    wrong: str
    noticed_by: str
    since: int = 14
    also: tuple[tuple[str, str, str], ...] = ()


_INTERLEAVINGS = (
    "tests/property/test_interleavings.py"
    "::test_r51_every_order_of_steps_keeps_fences_receipts_and_rows_together"
)

BUGS = {
    "a plain SELECT instead of the row lock": Bug(
        "fence/_decide.sql",
        "where f.resource = v_grant.resource for no key update;",
        "where f.resource = v_grant.resource;",
        f"{_INTERLEAVINGS}[the configuration changes while two instances apply-read committed]",
    ),
    "now() for the lease": Bug(
        "fence/_decide.sql",
        "interval '5 seconds') end;\n"
        "                v_lease := pgfence._lease_now("
        "v_grant, v_digest, v_proof, v_configuration, pg_catalog.clock_timestamp());",
        "interval '5 seconds') end;\n"
        "                v_lease := pgfence._lease_now("
        "v_grant, v_digest, v_proof, v_configuration, pg_catalog.now());",
        "tests/sql/test_time.py"
        "::test_r9_lease_that_ends_while_the_call_waits_for_the_fence_row_is_not_held"
        "[read committed]",
    ),
    "the generation of the policy is not asked": Bug(
        "fence/_decide.sql",
        "if v_grant.policy_generation <> v_policy.generation then",
        "if false then",
        "tests/sql/test_verdicts.py::test_r8_grant_of_an_old_policy_generation_is_stale",
    ),
    "an operation root is good for another fence": Bug(
        "fence/_decide.sql",
        "if v_grant.fence_token > v_fence.highest_fence\n           and exists",
        "if false\n           and exists",
        "tests/sql/test_verdicts.py::test_r11_root_that_was_used_under_an_earlier_fence_is_refused",
    ),
    "a segment is replayed by an old snapshot": Bug(
        "fence/_decide.sql",
        "perform pgfence._refuse_old_snapshot();",
        "null;",
        "tests/sql/test_time.py"
        "::test_r9_nor_is_a_segment_replayed_by_a_policy_that_is_no_longer_in_force[serializable]",
    ),
    "a fence is good for another grant": Bug(
        "fence/_decide.sql",
        "and v_digest <> v_highest.grant_digest then",
        "and false then",
        "tests/sql/test_verdicts.py"
        "::test_r11_same_fence_with_another_root_is_a_mismatch_with_the_same_root_an_equivocation",
    ),
    "admission by transaction ID alone": Bug(
        "guard/admitted_resources.sql",
        "  and f.admitted_transaction_start = current_timestamp\n"
        "  and f.admitted_backend = pg_catalog.pg_backend_pid()\n",
        "",
        "tests/attacks/test_admission.py",
    ),
    "the segment is checked before the lock": Bug(
        "fence/_decide.sql",
        "select f.* into v_fence from pgfence.fences as f\n"
        "                 where f.resource = v_grant.resource for no key update;",
        "perform from pgfence.fences as f\n"
        "                 where f.resource = v_grant.resource for no key update;",
        f"{_INTERLEAVINGS}[the configuration changes while two instances apply-read committed]",
    ),
    "a refusal changes the fence row": Bug(
        "fence/_decide.sql",
        "    if v_refused is not null then\n",
        "    if v_refused is not null then\n"
        "        update pgfence.fences set highest_fence = greatest(highest_fence,"
        " v_grant.fence_token) where resource = v_grant.resource;\n",
        "tests/sql/test_verdicts.py::test_r16_no_refusal_changes_the_highest_fence",
    ),
    "REPLAYED admits": Bug(
        "fence/_decide.sql",
        "                return row(pgfence._verdict_of('REPLAYED', v_receipt, v_fence), null)"
        "::pgfence._decision;",
        "                update pgfence.fences set admitted_transaction = pg_current_xact_id(),"
        " admitted_transaction_start = now(), admitted_backend = pg_backend_pid(),"
        " admitted_until = 'infinity' where resource = v_grant.resource;\n"
        "                return row(pgfence._verdict_of('REPLAYED', v_receipt, v_fence), null)"
        "::pgfence._decision;",
        "tests/attacks/test_going_round_the_guard.py::test_r24_only_accepted_admits",
    ),
    "no look at COMMIT": Bug(
        "fence/_look_at_commit.sql",
        "if pg_catalog.clock_timestamp() >= new.admitted_until then",
        "if false then",
        "tests/sql/test_time.py"
        "::test_r19_lease_that_ended_before_commit_fails_the_commit[read committed]",
    ),
    "the look at COMMIT does not notice IMMEDIATE": Bug(
        "fence/_look_at_commit.sql",
        "elsif pg_catalog.pg_trigger_depth() > new.commit_look then",
        "elsif false then",
        "tests/sql/test_time.py::test_r19_set_constraints_does_not_skip_the_look_at_commit"
        "[set constraints all immediate]",
    ),
    "search_path is not pinned": Bug(
        "fence/fenced_apply.sql",
        "set search_path = pg_catalog, pg_temp\n",
        "",
        "tests/sql/test_catalog.py",
    ),
    "the guard looks only at NEW": Bug(
        "guard/_guard_source.sql",
        "case when v_operation <> 'INSERT' then",
        "case when v_operation = 'DELETE' then",
        "tests/attacks/test_going_round_the_guard.py"
        "::test_r23_moving_a_row_needs_both_resources[plain]",
    ),
    "verification is remembered by the digest of the message": Bug(
        "fence/_authenticate.sql",
        "o.token_digest = v_known.token_digest",
        "o.grant_digest = sha256(substr(pgfence._base64url_decode(split_part(p_grant, '.', 3)), 1,"
        " length(pgfence._base64url_decode(split_part(p_grant, '.', 3))) - 64))",
        "tests/sql/test_verdicts.py"
        "::test_r4_verified_message_with_another_signature_is_refused_after_acceptance",
    ),
    "a grant's JSON is not encoded again and compared": Bug(
        "trust/_parse_grant.sql",
        "p_message is distinct from pgfence._encode_grant(v_grant)\n       or ",
        "",
        "tests/property/test_mutated_tokens.py"
        "::test_r3_mutated_tokens_are_refused_by_both_sides_alike[JSON]",
    ),
    "base64url is not encoded again and compared": Bug(
        "trust/_base64url_decode.sql",
        "p_text <> translate(encode(v_bytes, 'base64'), E'+/=\\n', '-_')",
        "v_bytes is null",
        "tests/property/test_mutated_tokens.py"
        "::test_r3_mutated_tokens_are_refused_by_both_sides_alike[envelope]",
    ),
    "what was found before a pause counts after it": Bug(
        "fence/_forget_verification.sql",
        "set checked_hash = null where",
        "set checked_hash = f.checked_hash where",
        "tests/sql/test_two_speeds.py"
        "::test_whatever_the_full_check_found_is_asked_again[the resource was paused]",
    ),
    "the quick way takes the hash of a token for the token": Bug(
        "fence/fenced_apply.sql",
        "and g.token = p_grant",
        "",
        "tests/sql/test_two_speeds.py::test_r4_hash_of_a_token_is_not_the_token",
    ),
    "a guard that was lost is not noticed": Bug(
        "guard/attestation_source.sql",
        "string_agg(format('oid %L', p.protected_table::oid), ', ' order by p.guard_id)",
        "format('oid %L', 1)",
        "tests/sql/test_guard_attestation.py::test_r25_damaged_guard_of_a_table_stops_admission"
        "[pgfence_guard_update disabled]",
    ),
    "a session does not hear of a damage in its transaction": Bug(
        "fence/fenced_apply.sql",
        "pg_catalog.pg_relation_is_updatable('1'::pg_catalog.regclass, false) = 0",
        "pg_catalog.pg_relation_is_updatable('pgfence.verdict'::pg_catalog.regclass, false) = 0",
        "tests/attacks/test_guard_damaged_under_an_open_session.py"
        "::test_r25_damage_between_two_segments_of_a_transaction_is_noticed"
        "[create temp table t (like pgfence.verdict)]",
        since=18,  # earlier ones hear of it all the same
    ),
    "a parent without columns is not looked for": Bug(
        "guard/attestation_source.sql",
        "from pg_inherits as i where i.inhrelid in (%2$s)",
        "from pg_inherits as i where i.inhrelid in (1)",
        "tests/attacks/test_guard_damaged_under_an_open_session.py"
        "::test_r25_parent_without_columns_is_noticed",
    ),
    "the quick way forgets the workload": Bug(
        "fence/fenced_apply.sql",
        "and f.checked_role = session_user::text",
        "",
        "tests/sql/test_two_speeds.py"
        "::test_r6_another_role_of_the_same_workload_is_checked_for_itself",
    ),
    "a new trust bundle leaves what was remembered": Bug(
        "fence/_version_rises.sql",
        "new.version := old.version + 1;",
        "null;",
        "tests/sql/test_rotation_sql.py::test_r4_a_remembered_verification_does_not_outlive_its_key",
    ),
    "the quorum of the bundle in force is not asked": Bug(
        "trust/_bundle_problem.sql",
        "if p_before.schema is not null\n       and",
        "if false and",
        "tests/sql/test_rotation_sql.py"
        "::test_r31_r32_next_bundle_gets_the_answer_of_the_table[only the new quorum]",
    ),
    "a promoted standby is not noticed": Bug(
        "fence/_is_recorded_database.sql",
        " and i.timeline = p_configuration.timeline\n",
        "\n",
        "tests/faults/failover/test_promotion.py"
        "::test_r39_owner_of_before_is_refused_on_a_promoted_standby_until_it_acquires_again",
    ),
    "a statement is let through when its first resource is in shadow": Bug(
        "guard/_guard_source.sql",
        "        if v_has_others then'",
        "        if false then'",
        "tests/sql/test_rollout.py"
        "::test_r29_statement_that_touches_both_is_refused_for_the_enforced_resource"
        "[plain-the enforced row last]",
    ),
    "an enforced prefix may be put in shadow again": Bug(
        "fence/_shadow_prefix.sql",
        "case when r.enforced_since is null then r.prefix end",
        "case when r.shadow_since is not null then r.prefix end",
        "tests/sql/test_rollout.py::test_r29_enforced_is_enforced_at_once_and_for_good",
    ),
    "shadow admits what it would refuse": Bug(
        "fence/_refuse.sql",
        "    v_verdict.reason := p_reason;",
        "    update pgfence.fences set admitted_transaction = pg_current_xact_id(),"
        " admitted_transaction_start = now(), admitted_backend = pg_backend_pid(),"
        " admitted_until = 'infinity' where v_shadow_prefix is not null;\n"
        "    v_verdict.reason := p_reason;",
        "tests/attacks/test_shadow.py::test_r24_would_refuse_admits_nothing",
    ),
    "two copies mint from the same base": Bug(
        "registry/_rebind_database.sql",
        "pg_catalog.gen_random_uuid()::text",
        "'00000000-0000-0000-0000-000000000000'",
        "tests/faults/failover/test_promotion.py"
        "::test_r39_two_promoted_standbys_of_one_primary_do_not_mint_the_same_fences",
    ),
    "a grant is decided before its key was seen": Bug(
        "registry/request.sql",
        "if v_term.coordinator <> 'postgres' and v_request.seen_at is null then",
        "if false then",
        "tests/sql/test_coordinator_terms.py"
        "::test_r53_nothing_is_decided_before_a_registry_process_has_seen_the_key",
    ),
    "a token is compared with the mark of after the look": Bug(
        "registry/record_token.sql",
        "if v_term.rising_tokens and p_token <= p_mark then",
        "if v_term.rising_tokens and p_token <= (select m.mark from pgfence_registry.backend_marks"
        " as m where m.resource = v_request.resource and m.term = p_term) then",
        "tests/sql/test_coordinator_terms.py"
        "::test_r37_token_that_was_overtaken_while_it_was_read_is_no_regression",
    ),
    "the mark is not raised": Bug(
        "registry/record_signature.sql",
        "where t.term = v_grant.term and t.rising_tokens",
        "where false and t.rising_tokens",
        "tests/sql/test_coordinator_terms.py"
        "::test_r37_token_below_the_mark_pauses_the_resource_and_names_both_numbers",
    ),
    "a lease whose key is another's is renewed": Bug(
        "registry/renew.sql",
        "       and not pgfence_registry._is_taken(g)\n",
        "",
        "tests/sql/test_coordinator_terms.py"
        "::test_r37_lease_is_not_prolonged_once_another_key_was_seen_to_hold",
    ),
    "a proof of another grant counts": Bug(
        "fence/_verify_proof.sql",
        "v_status.grant_digest <> pg_catalog.encode(p_grant_digest, 'hex')\n          or v_status",
        "v_status",
        "tests/sql/test_status_proofs.py::test_r13_a_proof_of_another_grant_is_of_no_use",
    ),
    "proofs of before a promotion count after it": Bug(
        "fence/_lease_now.sql",
        "when v_issued_at - v_tolerance <= p_configuration.proofs_from then 'BEFORE_REBIND' end",
        "end",
        "tests/sql/test_status_proofs.py::test_r39_after_a_promotion_only_later_proofs_count",
    ),
    "a proof outlives its lease": Bug(
        "registry/prove.sql",
        "least(v_grant.lease_ends_at, v_now + interval '30 seconds')",
        "v_now + interval '30 seconds'",
        "tests/sql/test_status_proofs.py"
        "::test_r13_a_proof_never_outlives_the_lease_nor_thirty_seconds",
    ),
    "reconciling does not lock the fence row": Bug(
        "reconcile/reconcile.sql",
        "perform from pgfence.fences as f where f.resource = p_resource for no key update;",
        "perform from pgfence.fences as f where f.resource = p_resource;",
        "tests/sql/test_reconcile.py::test_r45_an_old_snapshot_decides_nothing[repeatable read]",
    ),
    "a pruned receipt proves that nothing was applied": Bug(
        "reconcile/_find_outcome.sql",
        "if p_segment_seq <= v_operation.pruned_segments then",
        "if false then",
        "tests/sql/test_reconcile.py"
        "::test_r45_a_pruned_stretch_is_not_taken_for_one_that_was_never_applied",
    ),
    "a commit may come after the answer": Bug(
        "reconcile/answer_unknown.sql",
        "if (v_lease.state = 'HELD') is not true then",
        "if true then",
        "tests/sql/test_reconcile.py"
        "::test_r45_not_applied_ends_the_lease_so_that_no_commit_comes_after_it",
    ),
    "partitions are guarded row by row for replicas only": Bug(
        "guard/protect.sql",
        "select case when g.relation = p_table and not g.is_partitioned then",
        "select case when not g.is_partitioned then",
        "tests/attacks/test_features_of_postgresql.py"
        "::test_r23_merge_that_moves_rows_needs_both_resources[partitioned-update]",
        since=15,  # MERGE
        also=(
            (
                "guard/guards.sql",
                "or t.row_guard = 'replica' and (c.oid <> p.protected_table or c.relkind = 'p')\n",
                "\n",
            ),
        ),
    ),
    "a receipt names the receipt before the last as the one before it": Bug(
        "fence/fenced_apply.sql",
        "previous_digest = f.last_digest,",
        "previous_digest = f.previous_digest,",
        "tests/sql/test_evidence.py::test_r22_untouched_chain_verifies",
    ),
    "an index has another collation than what is looked up in it": Bug(
        "fence/operations.sql",
        'operation_root    text collate "C" not null',
        "operation_root    text not null",
        "tests/sql/test_two_speeds.py"
        "::test_r11_r47_an_owner_begins_as_quickly_after_thousands_of_others",
    ),
    "the end of the chain is not compared": Bug(
        "audit/verify_receipts.sql",
        "when v_fence.last_digest <> v_walk.last_digest",
        "when false",
        "tests/property/test_pruned_chains.py"
        "::test_r22_every_damage_to_a_chain_shows_and_pruning_hides_none",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_noticed(name: str, server: TestServer) -> None:
    bug = BUGS[name]
    with psycopg.connect(server.dsn) as conn:
        if conn.info.server_version < bug.since * 10_000:
            pytest.skip(f"before PostgreSQL {bug.since} this does no harm")
    planted = [(bug.file, bug.right, bug.wrong), *bug.also]
    for file, right, _ in planted:
        (source,) = (path for path in install.manifest_files() if path.as_posix().endswith(file))
        assert source.read_text(encoding="utf-8").count(right) == 1, "the bug finds no place"
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.noticed_by],
        cwd=ROOT,
        # On the same server: to make one takes longer than most of these tests. What cannot run on
        # a server that is given is skipped, so that it does not pass for having noticed.
        env=os.environ
        | {"PGFENCE_PLANTED_BUG": json.dumps(planted), "PGFENCE_TEST_DSN": server.dsn}
        | {"PGFENCE_REQUIRE_ALL": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout[-3000:]
    assert "1 failed" in outcome.stdout, outcome.stdout[-3000:]


def test_the_page_about_testing_names_every_planted_bug() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    for name, bug in BUGS.items():
        test = bug.noticed_by.split("::")[-1].split("[")[0].split("/")[-1]
        assert f"| {name} | `{test}` |" in page
