"""A report about a fit: which decisions it keeps and why, its cost under encryption, and how to check it."""

from quad4fhe.report.document import Report, check_page_path, report, require_extra
from quad4fhe.report.drawing import Picture
from quad4fhe.report.findings import Findings, Options, Source
from quad4fhe.report.section import Section, Tile
from quad4fhe.report.sections import SECTIONS

__all__ = [
    "SECTIONS",
    "Findings",
    "Options",
    "Picture",
    "Report",
    "Section",
    "Source",
    "Tile",
    "check_page_path",
    "report",
    "require_extra",
]
