"""The example's modules import each other, as files of one folder do."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Behind the other examples: that of BFCL has a replay.py, too, which its tests import.
sys.path += [str(ROOT / "examples" / "tau2"), str(ROOT / "tests" / "sandboxes")]
