"""The page: one HTML document that needs no other file and no network, made from templates that escape all text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.summary import percent
from quad4fhe.report.drawing import DARK, LIGHT
from quad4fhe.report.findings import Findings
from quad4fhe.report.markup import NOTHING, from_fit
from quad4fhe.report.section import Section, Tile

_MACROS = ("command", "figures", "pairs", "table")


def page(found: Findings, sections: Mapping[str, Section]) -> str:
    """The whole document."""
    script = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    bodies = {name: _body(found, section) for name, section in sections.items()}
    return (
        _templates()
        .get_template("page.html")
        .render(
            found=found,
            sections=sections,
            bodies=bodies,
            tiles=[*_tiles(found), *(tile for section in sections.values() for tile in section.tiles)],
            digest=digest,
            script=Markup(script),
            style=Markup(_text("page.css")),
            light=LIGHT,
            dark=DARK,
        )
    )


def _body(found: Findings, section: Section) -> Markup:
    template = _templates().from_string(section.template)
    return Markup(template.render(found=found, pictures=section.pictures, **section.values()))


@cache
def _templates() -> jinja2.Environment:
    """Templates that escape every value except Markup, and raise an error for a name that does not exist."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("quad4fhe.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["NOTHING"] = NOTHING
    made.globals["diagram"] = diagram
    macros = made.get_template("macros.html").module
    made.globals |= {name: getattr(macros, name) for name in _MACROS}
    return made


def diagram(name: str) -> Markup:
    """A diagram of the manual as a figure in the colours of the page; its title and description become the caption."""
    text = files("quad4fhe.report").joinpath("diagrams", f"{name}.svg").read_text(encoding="utf-8")
    title, about = (re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text)[0] for tag in ("title", "desc"))
    inner = re.sub(r"<(style|title|desc)\b.*?</\1>\s*", "", text)
    inner = re.sub(r' (xmlns|aria-labelledby)="[^"]*"', "", inner).replace("<svg ", f'<svg aria-label="{about}" ', 1)
    caption = f"<figcaption><b>{title}. </b>{about}</figcaption>"
    return Markup(f'<figure id="diagram-{name}">{inner}{caption}</figure>')


def _tiles(found: Findings) -> list[Tile]:
    tiles = [_kept("Kept, calibration", found.calibration.agreement)]
    if found.test is not None:
        tiles.append(_kept("Kept, test", found.test.agreement))
    if found.test is not None and found.test.accuracy is not None:
        relu, ours = found.test.accuracy
        tiles.append(Tile("Accuracy, test", percent(ours), f"{percent(relu)} with ReLU"))
    mlp, family = found.fit.mlp, found.fit.family
    tiles.append(Tile("Family", from_fit("family", family, family), found.verified.statement))
    tiles.append(Tile("Network", f"{mlp.features}-{mlp.units}-{mlp.outputs}", "features, units, outputs"))
    return tiles


def _kept(name: str, part: Agreement) -> Tile:
    return Tile(name, percent(part.agreement), f"{part.mismatches:,} of {part.samples:,} lost")


def _text(name: str) -> str:
    return files("quad4fhe.report").joinpath("templates", name).read_text(encoding="utf-8")
