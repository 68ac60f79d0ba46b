"""The page: one file that needs nothing else, in the order in which a reader asks.

Decides frame, order and the first screen. The sections are in `sections` and `costs`, the look in page.css.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from quad4fhe.circuit.forecast import readable_bytes, readable_seconds
from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.words import percent
from quad4fhe.report import costs, sections
from quad4fhe.report.drawing import Picture
from quad4fhe.report.findings import Findings
from quad4fhe.report.markup import Markup, element, from_fit, join, pairs
from quad4fhe.report.palette import DARK, LIGHT, variables
from quad4fhe.report.source import Source
from quad4fhe.report.stated import stated


def page(found: Findings, shown: list[Picture], source: Source) -> str:
    """The whole document."""
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing may be fetched and no script may run but the one below, whatever a class name says.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup('<link rel="icon" href="data:,">'),
            element("title", f"{source.title}: quad4fhe report"),
            Markup(f"<style>\n{_theme()}{_resource('page.css')}</style>"),
        ],
        "\n",
    )
    body = join(
        [
            _header(source),
            element(
                "main",
                _opening(found),
                sections.decisions(found, shown),
                sections.activation(found, shown),
                sections.by_class(found, shown),
                sections.promise(found, shown),
                sections.closest(found),
                costs.ladder(found, source),
                costs.encryption(found, source),
                sections.certificate(found, source),
                stated(found),
            ),
            _footer(found),
            Markup(f"<script>{script}</script>"),
        ],
        "\n",
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _header(source: Source) -> Markup:
    left = element("div", element("h1", source.title), element("p", "quad4fhe report"))
    return element(
        "header", left, Markup('<button id="theme" type="button" aria-label="Switch theme" hidden></button>')
    )


def _opening(found: Findings) -> Markup:
    sentence = element("p", found.verdict, **{"class": "verdict"})
    return element("section", sentence, element("div", pairs(_tiles(found)), **{"class": "tiles"}))


def _tiles(found: Findings) -> list[tuple[str, str]]:
    fit = found.fit
    tiles: list[tuple[str, str]] = [("Kept, calibration", _kept(found.calibration.agreement))]
    if found.test is not None:
        tiles.append(("Kept, test", _kept(found.test.agreement)))
    if found.test is not None and found.test.accuracy is not None:
        relu, ours = found.test.accuracy
        tiles.append(("Accuracy, test", _tile(percent(ours), f"{percent(relu)} with ReLU")))
    m = fit.mlp
    tiles.append(("Family", _tile(from_fit("family", fit.family, fit.family), found.verified.statement)))
    tiles.append(("Network", _tile(f"{m.features}-{m.units}-{m.outputs}", "features, units, outputs")))
    taken = found.plans[0]
    bill = taken.forecast
    each = f"{taken.samples:,} samples, N = {taken.chain.ring:,}, {readable_bytes(bill.upload_bytes)} up"
    tiles.append(("Encrypted, forecast", _tile(readable_seconds(bill.seconds), each)))
    return tiles


def _kept(part: Agreement) -> Markup:
    return _tile(percent(part.agreement), f"{part.mismatches:,} of {part.samples:,} lost")


def _tile(value: str, note: str) -> Markup:
    return join([value, " ", element("small", note)])


def _footer(found: Findings) -> Markup:
    made = f"Made on {found.made:%d %B %Y, %H:%M} UTC"
    return element("footer", f"{made} with quad4fhe. This file is complete: it fetches nothing and sends nothing.")


def _theme() -> str:
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        "@media screen {\n"
        f"  :root[data-theme=dark] {{ color-scheme: dark; {dark} }}\n"
        f"  @media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }} }}\n"
        "}\n"
    )


def _resource(name: str) -> str:
    return files("quad4fhe.report").joinpath(name).read_text(encoding="utf-8")
