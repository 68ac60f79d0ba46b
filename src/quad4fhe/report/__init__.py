"""Pictures and the page: what a fit kept, why, at what encrypted cost, and how to check it."""

from quad4fhe.report.document import Report, check_page_path, report
from quad4fhe.report.drawing import Picture, require_matplotlib
from quad4fhe.report.findings import Findings, Options
from quad4fhe.report.source import Source

__all__ = ["Findings", "Options", "Picture", "Report", "Source", "check_page_path", "report", "require_matplotlib"]
