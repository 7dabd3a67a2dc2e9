"""The page on which people read rollouts: over HTTP while a run goes on, or as one file."""

from __future__ import annotations

from .exporting import export_page
from .labels import export_labels
from .serving import view

__all__ = ["export_labels", "export_page", "view"]
