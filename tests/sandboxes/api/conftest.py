"""The suite that all sandboxes pass lies in the folder above."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
