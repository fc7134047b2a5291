"""What an experiment found, as files to read: tables, figures, and one page that collects them."""

from .outcome import Finding, Outcome
from .page import build_page, render_page
from .scoreboard import load_outcomes, scoreboard, update_document
from .tables import Table

__all__ = ["Finding", "Outcome", "Table", "build_page", "load_outcomes", "render_page", "scoreboard", "update_document"]
