"""The example's modules import each other, as files of one folder do."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "bfcl"), str(ROOT / "tests" / "sandboxes")]
