"""Evidence: what a reward rests on, as a hash chain that anyone can recompute.

`recording` writes it as a run goes on (see `sdk.traces.run_folder`), `verifying.verify_run` recomputes it. The form of
what is hashed is said in `canonical` and `links`, and in docs/evidence.md.
"""
