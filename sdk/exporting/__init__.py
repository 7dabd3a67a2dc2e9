"""Exports: a tuned model as what other servers take, with the settings of its measurement."""

from .export_check import ExportCheck, check_export
from .exported_folder import KINDS, export

__all__ = ["KINDS", "ExportCheck", "check_export", "export"]
