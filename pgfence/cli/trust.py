"""pgfence trust init, show, propose, sign, install, revoke-epoch"""

import re
import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console

from pgfence import tokens, trust
from pgfence.cli.output import (
    AUDITOR,
    FOUND,
    OWNER,
    Connection,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
)
from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model.bundle import PURPOSES, TrustBundle, TrustKey
from pgfence.model.canonical import is_identifier
from pgfence.model.proposal import (
    NO_END,
    Proposal,
    first_proposal,
    next_proposal,
    time_of,
)
from pgfence.model.signature import key_id, raw_public_key
from pgfence.trust import DAY_US, TrustKeys

app = typer.Typer(no_args_is_help=True, help="Which keys the guard accepts.")

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
_KID = re.compile(r"[0-9a-f]{16}")

_Days = Annotated[
    int, typer.Option(min=1, max=36500, help="How long the bundle is valid, from now on.")
]
_ProposalFile = Annotated[Path, typer.Argument(help="The file of the proposal.")]
_Add = Annotated[
    list[str] | None,
    typer.Option(metavar="PURPOSE:KEY", help="A key to accept: root:, grant: or status:."),
]
_Remove = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="A key to accept no longer.")
]
_End = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY:DAYS", help="A key to accept for so many days more."),
]
_Threshold = Annotated[
    int | None, typer.Option(min=1, help="How many root keys must sign the bundle and the next.")
]
_Out = Annotated[
    Path | None, typer.Option(show_default="trust-VERSION.json", help="The file to write.")
]


@app.callback()
def _group() -> None:
    """Which keys the guard accepts.

    A KEY is a public key as `pgfence keys public` prints it, or the kid that `trust show` lists.
    """


@app.command()
@reported
def init(
    audience: Annotated[
        str | None,
        typer.Option(
            show_default="the database's name",
            help="The name under which grants are issued for this database.",
        ),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="The public root key of each of several people, instead of a file."
        ),
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="more than half", help="How many of them must sign a bundle."
        ),
    ] = None,
    root_key: Annotated[
        Path | None,
        typer.Option(show_default="root.key", help="Signs trust bundles. Keep it offline."),
    ] = None,
    grant_key: Annotated[
        Path, typer.Option(help="Signs grants. The registry process needs it.")
    ] = Path("grant.key"),
    status_key: Annotated[
        Path, typer.Option(help="Signs status proofs. Keep it until a registry elsewhere needs it.")
    ] = Path("status.key"),
    days: _Days = 365,
    out: _Out = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Install the first trust bundle, and make the key files that are not there yet.

    As a member of pgfence_owner, which the role that ran `pgfence migrate` is. Existing key files
    are used as they are. With --root nothing is installed: a proposal is written, for the people
    who hold the root keys to sign.
    """
    if root and root_key:
        raise typer.BadParameter("give public keys of people (--root) or a file (--root-key)")
    if not root and (threshold or out):
        raise typer.BadParameter("--threshold and --out go with the --root of several people")
    paths = {"grant": grant_key, "status": status_key}
    if not root:
        paths = {"root": root_key or Path("root.key"), **paths}
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise typer.BadParameter("a key has one purpose: give different files")
    people = [_public_key(text) for text in root or ()]
    with database(dsn, OWNER) as conn:
        audience = audience or conn.info.dbname
        if not is_identifier(audience):
            raise typer.BadParameter(
                f"the audience {audience!r} is not an ID", param_hint="--audience"
            )
        installed = trust.in_force(conn)
        if installed is not None:
            raise TrustRefusedError(
                f"database {conn.info.dbname} has trust bundle {installed.version}: "
                "nothing was changed",
                hint="pgfence trust propose makes the bundle that follows it.",
            )
        made = [path for path in paths.values() if not path.exists()]
        keys = {purpose: _key(path, path in made) for purpose, path in paths.items()}
        files = {
            purpose: {"kid": _kid_of(keys[purpose]), "path": path, "made": path in made}
            for purpose, path in paths.items()
        }
        if not root:
            bundle = trust.install_first_bundle(conn, audience, TrustKeys(**keys), days)
            _tell_installed(bundle, files, as_json)
            return
        now_us = trust.now_us(conn)
    proposal = first_proposal(
        audience,
        [
            *(trust.trusted_key("root", key, now_us) for key in people),
            *(trust.trusted_key(p, raw_public_key(key), now_us) for p, key in keys.items()),
        ],
        threshold or len(people) // 2 + 1,
        now_us=now_us,
        expires_at=now_us + days * DAY_US,
    )
    _write_new(proposal, out, as_json, keys=files)


@app.command()
@reported
def show(
    proposal: Annotated[
        Path | None, typer.Argument(help="A proposal, instead of the bundle in force.")
    ] = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Show the trust bundle in force; or what a proposal would change, and who has signed it.

    As a role in pgfence_auditor, pgfence_app or pgfence_registry; for a proposal no database is
    asked. Exit code 1 says that the bundle in force ends within 30 days.
    """
    if proposal is not None:
        found = _read(proposal)
        _tell(proposal, found, as_json)
        found.check(_now_us(found))
        return
    with database(dsn, "a role in pgfence_auditor, pgfence_app or pgfence_registry") as conn:
        bundle = _in_force(conn)
        ends_soon = bundle.ends_soon(trust.now_us(conn))
    if as_json:
        print_json(_bundle_document(bundle) | {"ends_soon": ends_soon})
    else:
        out = console()
        out.print(f"trust bundle {bundle.version}, for audience {bundle.audience}", soft_wrap=True)
        out.print(f"its SHA-256 is {bundle.digest}", soft_wrap=True)
        out.print(f"valid until {_day(bundle.expires_at)}; lowest good epoch {bundle.lowest_epoch}")
        out.print(
            f"the next one is signed by {bundle.root_threshold} of {len(bundle.roots)} root keys"
        )
        print_table(
            out,
            ["purpose", "kid", "from", "until"],
            [
                [k.purpose, k.kid, _day(k.not_before),
                 "" if k.expires_at == NO_END else _day(k.expires_at)]
                for k in sorted(bundle.keys, key=lambda key: (key.purpose, key.kid))
            ],
        )  # fmt: skip
        if ends_soon:
            out.print("It ends soon, and then every grant is refused: pgfence trust propose")
    if ends_soon:
        raise typer.Exit(FOUND)


@app.command()
@reported
def propose(
    add: _Add = None,
    remove: _Remove = None,
    end: _End = None,
    threshold: _Threshold = None,
    days: _Days = 365,
    out: _Out = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Write the proposal of a bundle that follows the one in force, for root keys to sign.

    As a role in pgfence_auditor, pgfence_app or pgfence_registry. Nothing is changed in the
    database. Without options it only renews the validity.
    """
    with database(dsn, "a role in pgfence_auditor, pgfence_app or pgfence_registry") as conn:
        proposal = _following(conn, add, remove, end, threshold, days)
    _write_new(proposal, out, as_json)


@app.command("revoke-epoch")
@reported
def revoke_epoch(
    add: _Add = None,
    remove: _Remove = None,
    end: _End = None,
    threshold: _Threshold = None,
    days: _Days = 365,
    out: _Out = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Propose a bundle that refuses every grant issued so far; owners then acquire again.

    Takes the options of `propose`, so that keys can be exchanged with the same signatures. As a
    role in pgfence_auditor, or a member of pgfence_owner.
    """
    with database(dsn, AUDITOR) as conn:
        lowest_epoch = trust.issuer_epoch(conn) + 1
        proposal = _following(conn, add, remove, end, threshold, days, lowest_epoch)
    _write_new(proposal, out, as_json)


@app.command()
@reported
def sign(
    proposal: _ProposalFile,
    key: Annotated[Path, typer.Option(help="Your root key's file.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a proposal changes, ask, and add the signature of your root key to the file.

    Needs no database and no network. Compare the SHA-256 with what the others see.
    """
    if as_json and not yes:
        raise typer.BadParameter("--json does not ask: give --yes as well", param_hint="--json")
    found = _read(proposal)
    root = tokens.load_key(key)
    signed = found.sign(root, _now_us(found))
    if not as_json:
        _tell(proposal, found, as_json=False)
    if not yes and signed != found:
        typer.confirm(f"Sign it with key {_kid_of(root)}?", abort=True)
    _write(proposal, signed)
    if as_json:
        print_json(_proposal_document(proposal, signed))
    elif signed == found:
        console().print(f"key {_kid_of(root)} has signed it already")
    else:
        console().print(f"signed with key {_kid_of(root)}")
        _tell_quorums(console(), proposal, signed)


@app.command()
@reported
def install(
    proposals: Annotated[
        list[Path], typer.Argument(help="The signed proposal, or copies that were signed apart.")
    ],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Put a proposal in force that enough root keys have signed.

    As a member of pgfence_owner. It takes effect at once and as a whole, or not at all. Done
    already: nothing is changed.
    """
    proposal = reduce(Proposal.merge, map(_read, proposals))
    with database(dsn, OWNER) as conn:
        present = trust.in_force(conn)
        done = present == proposal.bundle
        if not done:
            _require_before(proposal, present)
            _require_quorums(proposal, trust.now_us(conn))
            trust.install_bundle(conn, proposal)
    bundle = proposal.bundle
    if as_json:
        print_json(_bundle_document(bundle) | {"installed": not done})
    elif done:
        console().print(f"trust bundle {bundle.version} is in force already: nothing to do")
    else:
        out = console()
        out.print(f"trust bundle {bundle.version} is in force, for audience {bundle.audience}")
        out.print(f"its SHA-256 is {bundle.digest}", soft_wrap=True)


def _key(path: Path, make: bool) -> Ed25519PrivateKey:
    if make:
        tokens.write_key(path, Ed25519PrivateKey.generate())
    return tokens.load_key(path)


def _kid_of(key: Ed25519PrivateKey) -> str:
    return key_id(raw_public_key(key))


def _public_key(text: str) -> bytes:
    if not _PUBLIC_KEY.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r} is no public key: 64 hexadecimal digits, see pgfence keys public"
        )
    return bytes.fromhex(text)


def _kid(text: str) -> str:
    return text if _KID.fullmatch(text) else key_id(_public_key(text))


def _in_force(conn: Connection) -> TrustBundle:
    bundle = trust.in_force(conn)
    if bundle is None:
        raise TrustRefusedError(
            f"database {conn.info.dbname} has no trust bundle", hint="Run: pgfence trust init"
        )
    return bundle


def _following(
    conn: Connection,
    add: Sequence[str] | None,
    remove: Sequence[str] | None,
    end: Sequence[str] | None,
    threshold: int | None,
    days: int,
    lowest_epoch: int | None = None,
) -> Proposal:
    now_us = trust.now_us(conn)
    ends = {}
    for text in end or ():
        key, _, number = text.partition(":")
        if not number.isascii() or not number.isdecimal() or len(number) > 5:
            raise typer.BadParameter(f"{text!r} is not KEY:DAYS", param_hint="--end")
        ends[_kid(key)] = now_us + int(number) * DAY_US
    return next_proposal(
        _in_force(conn),
        now_us=now_us,
        expires_at=now_us + days * DAY_US,
        add=[_added(text, now_us) for text in add or ()],
        remove=[_kid(text) for text in remove or ()],
        ends=ends,
        threshold=threshold,
        lowest_epoch=lowest_epoch,
    )


def _added(text: str, now_us: int) -> TrustKey:
    purpose, _, key = text.partition(":")
    if purpose not in PURPOSES:
        raise typer.BadParameter(f"{text!r} is not PURPOSE:KEY", param_hint="--add")
    return trust.trusted_key(purpose, _public_key(key), now_us)


def _now_us(proposal: Proposal) -> int:
    """Our clock; a machine that is not online may be behind, and nothing is signed before it is
    proposed."""
    return max(time.time_ns() // 1000, proposal.bundle.issued_at)


def _read(path: Path) -> Proposal:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from error
    try:
        return Proposal.parse(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error


def _write(path: Path, proposal: Proposal) -> None:
    """Whole or not at all, also when it is there already."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(proposal.encode(), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error}") from error


def _write_new(proposal: Proposal, out: Path | None, as_json: bool, **more: object) -> None:
    path = out or Path(f"trust-{proposal.bundle.version}.json")
    if path.exists():
        raise InvalidArgumentError(
            f"{path} exists; a proposal is never overwritten", hint="Give another --out."
        )
    _write(path, proposal)
    if as_json:
        print_json(_proposal_document(path, proposal) | more)
    else:
        _tell(path, proposal, as_json=False)
        console().print(f"next: pgfence trust sign {path} --key ROOT_KEY", soft_wrap=True)


def _tell(path: Path, proposal: Proposal, as_json: bool) -> None:
    """What a proposal changes, and how far it is."""
    if as_json:
        print_json(_proposal_document(path, proposal))
        return
    out, bundle = console(), proposal.bundle
    out.print(f"{path}: trust bundle {bundle.version}, for audience {bundle.audience}")
    out.print(f"its SHA-256 is {bundle.digest}", soft_wrap=True)
    if proposal.before:
        out.print(
            f"it follows bundle {proposal.before.version}, whose SHA-256 is "
            f"{proposal.before.digest}",
            soft_wrap=True,
        )
    changes = [[change.what, change.before, change.after] for change in proposal.changes()]
    if changes:
        print_table(out, ["", "before", "after"], changes)
    else:
        out.print("nothing changes but the version")
    _tell_quorums(out, path, proposal)


def _tell_quorums(out: Console, path: Path, proposal: Proposal) -> None:
    quorums = proposal.quorums(_now_us(proposal))
    for quorum in quorums:
        waits = f", not by {' '.join(quorum.not_signed)}" if quorum.missing else ""
        out.print(
            f"bundle {quorum.bundle} asks for {quorum.threshold} of its root keys: "
            f"signed by {' '.join(quorum.signed) or 'none'}{waits}",
            soft_wrap=True,
        )
    if not any(quorum.missing for quorum in quorums):
        out.print(f"next: pgfence trust install {path}", soft_wrap=True)


def _require_before(proposal: Proposal, present: TrustBundle | None) -> None:
    """Raise `TrustRefusedError` if the bundle in force is not the one that this one follows."""
    if proposal.before != present:
        follows = (
            f"follows bundle {proposal.before.version}" if proposal.before else "is to be the first"
        )
        there = f"trust bundle {present.version}, {present.digest}," if present else "no bundle"
        raise TrustRefusedError(
            f"the proposed bundle {follows}, and {there} is in force: nothing was changed",
            hint="Make the proposal again: pgfence trust propose",
            rule="R31",
        )


def _require_quorums(proposal: Proposal, now_us: int) -> None:
    """Raise `TrustRefusedError`, saying who has not signed. The rest is the database's to say."""
    for quorum in proposal.quorums(now_us):
        if quorum.missing:
            raise TrustRefusedError(
                f"{quorum.missing} more of the root keys of trust bundle {quorum.bundle} must "
                f"sign: not signed by {', '.join(quorum.not_signed)}",
                {"bundle": quorum.bundle, "not_signed": list(quorum.not_signed)},
                hint="Nothing was changed. Each of them runs: pgfence trust sign FILE --key KEY",
                rule="R31",
            )


def _tell_installed(bundle: TrustBundle, files: dict[str, Any], as_json: bool) -> None:
    """The first bundle of one person."""
    if as_json:
        print_json(
            {
                "version": bundle.version,
                "audience": bundle.audience,
                "digest": bundle.digest,
                "expires_at": time_of(bundle.expires_at),
                "keys": files,
            }
        )
        return
    out = console()
    out.print(f"trust bundle 1 is installed, for audience {bundle.audience}", soft_wrap=True)
    out.print(f"its SHA-256 is {bundle.digest}", soft_wrap=True)
    for purpose, file in files.items():
        what = "made" if file["made"] else "was there"
        out.print(f"{purpose:>7}: {file['path']} ({what}), kid {file['kid']}", soft_wrap=True)
    out.print(
        f"{files['grant']['path']} belongs to the registry process and to nobody else.\n"
        f"Take {files['root']['path']} and {files['status']['path']} off this machine, to a place "
        "that is not online, and keep a copy: without the root key no other bundle can follow "
        f"this one. It is valid until {_day(bundle.expires_at)}.",
        soft_wrap=True,
    )


def _bundle_document(bundle: TrustBundle) -> dict[str, Any]:
    return {
        "version": bundle.version,
        "audience": bundle.audience,
        "digest": bundle.digest,
        "issued_at": time_of(bundle.issued_at),
        "expires_at": time_of(bundle.expires_at),
        "lowest_epoch": bundle.lowest_epoch,
        "root_threshold": bundle.root_threshold,
        "keys": [
            {
                "kid": key.kid,
                "purpose": key.purpose,
                "public_key": key.public_key.hex(),
                "not_before": time_of(key.not_before),
                "expires_at": None if key.expires_at == NO_END else time_of(key.expires_at),
            }
            for key in bundle.keys
        ],
    }


def _proposal_document(path: Path, proposal: Proposal) -> dict[str, Any]:
    return {
        "path": path,
        "version": proposal.bundle.version,
        "digest": proposal.bundle.digest,
        "previous": proposal.bundle.previous,
        "changes": proposal.changes(),
        "quorums": proposal.quorums(_now_us(proposal)),
    }


def _day(microseconds: int) -> str:
    return f"{time_of(microseconds):%Y-%m-%d}"
