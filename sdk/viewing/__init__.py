"""The page on which people read rollouts: over HTTP while a run goes on, or as one file."""

from .labels import export_labels
from .page_files import export_page
from .viewer_app import view

__all__ = ["export_labels", "export_page", "view"]
