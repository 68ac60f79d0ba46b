"""The sections of a report, in the order of the page.

A section is one file of this folder with a subclass of `Section`, and one line here.
"""

from __future__ import annotations

from quad4fhe._registry import Registry
from quad4fhe.report.section import Section

SECTIONS: Registry[type[Section]] = Registry(
    "report section",
    {
        "plane": "quad4fhe.report.sections.plane:LiftedPlane",
        "decisions": "quad4fhe.report.sections.decisions:Decisions",
        "polynomial": "quad4fhe.report.sections.polynomial:Polynomial",
        "by-class": "quad4fhe.report.sections.by_class:ByClass",
        "promise": "quad4fhe.report.sections.promise:Promise",
        "closest": "quad4fhe.report.sections.closest:Closest",
        "ladder": "quad4fhe.report.sections.ladder:Ladder",
        "encryption": "quad4fhe.report.sections.encryption:Encryption",
        "certificate": "quad4fhe.report.sections.certificate:Certified",
        "stated": "quad4fhe.report.sections.stated:Stated",
    },
)
