"""`toolbake verify`: recompute the evidence of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import arg, opt

if TYPE_CHECKING:
    from ...evidence.expected_run import Verification

DOES_NOT_HOLD = 3
_MOST_SHOWN = 50


Run = Annotated[Path, arg("RUN", "The folder of a run.", default=False)]
Again = Annotated[
    str | None,
    opt(
        "--verifier FILE.py:NAME",
        "Give every verdict again with this verifier, on the evidence alone. It must be deterministic, and be the one "
        "of the run. Only what is named here is loaded, nothing that the folder names.",
        default="none: verdicts are not given again",
    ),
]
Root = Annotated[
    str | None, opt("--root HASH", "A root that was noted elsewhere: the run must have it.", default="none")
]
PublicKey = Annotated[
    Path | None, opt("--public-key FILE.pem", "The run must be signed with this Ed25519 key.", default="none")
]

SignWith = Annotated[
    Path | None,
    opt(
        "--sign-with KEY.pem",
        "Where everything holds, sign the root with this Ed25519 private key, into RUN/evidence.sig.json.",
        default="none: nothing is signed",
    ),
]


def verify(
    run: Run,
    *,
    verifier: Again = None,
    root: Root = None,
    public_key: PublicKey = None,
    sign_with: SignWith = None,
    as_json: Annotated[bool, opt("--json", "Print the outcome as JSON.")] = False,
) -> None:
    """Recompute a run's evidence, and name what is not as it was recorded.

    Every rollout is a chain of hashes over its task, the tools, every message, call and result, the final state, the
    weights' version and the verdict; the run is a chain over its rollouts. A changed byte, and a rollout that is
    missing, added, repeated or moved, is named with its file and line. With --verifier, so is a reward that the
    evidence does not give.

    Exit codes: 0 everything holds, 1 an error, 3 something does not.

    Examples:
      toolbake verify runs/desk
      toolbake verify runs/desk --verifier checks.py:verify --public-key signer.pem
    """
    import json

    import anyio

    from ...evidence.run_verification import sign_run, verify_run
    from ...process import printing_to_stderr
    from ..sources import load_verifier

    judge = load_verifier(verifier) if verifier is not None else None
    with printing_to_stderr():
        found = anyio.run(lambda: verify_run(run, verifier=judge, root=root, public_key=public_key))
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else _text(found))
    if not found.holds:
        raise typer.Exit(DOES_NOT_HOLD)
    if sign_with is not None:
        sign_run(run, found, sign_with)
        typer.echo(f"signed {run / 'evidence.sig.json'}", err=True)


def _text(found: Verification) -> str:
    from mcp_bridge.safe_text import visible

    stages = ", ".join(f"{count} {stage}" for stage, count in sorted(found.rollouts.items())) or "none"
    lines = [
        f"root      {found.root}",
        f"evidence  {found.entries} entries",
        f"rollouts  {stages}",
        f"calls     {found.calls} lines",
        f"verdicts  {found.rescored} given again",
        *(f"note      {note}" for note in found.notes),
        *(str(finding) for finding in found.findings[:_MOST_SHOWN]),
    ]
    if len(found.findings) > _MOST_SHOWN:
        lines.append(f"and {len(found.findings) - _MOST_SHOWN} more; --json has them all")
    lines.append("everything holds" if found.holds else f"{len(found.findings)} findings: the evidence does not hold")
    return visible("\n".join(lines))
