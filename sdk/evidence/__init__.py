"""Evidence: what a reward rests on, as a hash chain that anyone can recompute.

`evidence_log` writes it as a run goes on (see `sdk.traces.run_folder`), `run_verification.verify_run` recomputes it.
`canonical` and docs/evidence.md define the form of what is hashed.
"""
