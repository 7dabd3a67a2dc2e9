"""No probe earns anything of the verifiers that the examples train with."""

import importlib
import sys
from pathlib import Path

import pytest

import sdk
from sdk.probing.probes import PROBES

BFCL = Path(__file__).parents[2] / "examples" / "bfcl"


@pytest.mark.parametrize("name", ["verify", "verify_the_end"])
def test_no_probe_earns_anything_of_the_bfcl_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bfcl_eval", reason="install it with: pip install --no-deps -r examples/bfcl/requirements.txt")
    monkeypatch.syspath_prepend(str(BFCL))
    before = set(sys.modules)
    try:
        modules = {part: importlib.import_module(part) for part in ("tasks", "worlds", "verifier")}
        report = sdk.certify(
            modules["worlds"].BfclTwin(), modules["tasks"].tasks(), getattr(modules["verifier"], name), most_tasks=2
        )
    finally:
        for module in set(sys.modules) - before:
            if str(BFCL) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]
    assert report.findings == []
    assert len(report.rollouts) >= 2 * len(PROBES)
    assert report.unscored == 0
