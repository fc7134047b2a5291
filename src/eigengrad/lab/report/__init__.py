"""What an experiment found, as files to read: tables, figures, and one page that collects them."""

from .outcome import Finding, Outcome
from .page import build_page, render_page
from .tables import Table

__all__ = ["Finding", "Outcome", "Table", "build_page", "render_page"]
