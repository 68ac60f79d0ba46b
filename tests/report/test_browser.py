"""The page in a real browser: no complaint, no request, no sideways scrolling, both themes, on screen and on paper."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import fit
from support import browser
from support.cases import PAIRS, PAIRS_X, PLANE, PLANE_X

pytest.importorskip("matplotlib", reason="the report needs matplotlib: pip install 'quad4fhe[report]'")

from quad4fhe.report import Options, Source, report

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium: apt-get install chromium")
OPTIONS = Options(ladder="none", samples=64)
LONG = "a class with a name that is far too long for any column of any table on a telephone"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page with the plane, one with many classes, hostile and long names and long paths."""
    folder = tmp_path_factory.mktemp("pages")
    names = ["<script>console.log(1)</script>", '"><img src=http://example.com/x.png>', LONG, "x" * 90]
    X = np.random.default_rng(1).normal(size=(50, 3))
    source = Source("a/very" * 20, "/a/long/path" * 9 + "/fit.safetensors", "calib.npz")
    made = {
        "plane": report(PLANE, PLANE_X, X, options=OPTIONS),
        "pairs": report(PAIRS, PAIRS_X, X, PAIRS.mlp.decide(X), classes=names, options=OPTIONS, source=source),
    }
    return {name: each.save(folder / f"{name}.html") for name, each in made.items()}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["plane", "pairs"])
def test_no_complaint_no_request_no_sideways_scrolling(
    chromium: browser.Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    chromium.open(pages[name], width, dark=dark)
    for details in ("false", "true"):
        chromium.evaluate(f"document.querySelectorAll('details').forEach(d => d.open = {details})")
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.complaints() == []
    assert chromium.requests() == [pages[name].as_uri()]
    assert chromium.evaluate("document.querySelectorAll('figure svg[role=img]').length") >= 3


def colour(chromium: browser.Browser, selector: str, what: str) -> list[int]:
    value = chromium.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{what}")
    assert value.startswith("rgb"), value
    return [int(float(part)) for part in value.split("(")[1].rstrip(")").split(",")[:3]]


def luminance(rgb: list[int]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_pictures_are_readable_in_both_themes(
    chromium: browser.Browser, pages: dict[str, Path], dark: bool
) -> None:
    chromium.open(pages["plane"], 1280, dark=dark)
    paper = luminance(colour(chromium, "body", "backgroundColor"))
    assert (paper < 0.2) == dark
    for selector, what, least in (
        ("body", "color", 7.0),
        ("figcaption", "color", 4.5),
        ("#picture-plane svg text", "fill", 4.5),
        ('#picture-plane svg path[style*="stroke: var(--blue)"]', "stroke", 3.0),
        ('#picture-plane svg path[style*="stroke: var(--orange)"]', "stroke", 3.0),
        ("td .lost", "color", 4.5),
        (".mark", "color", 4.5),
    ):
        ink = luminance(colour(chromium, selector, what))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= least, selector


def test_the_button_switches_the_theme_and_says_what_it_will_do(
    chromium: browser.Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["plane"], 1280)
    light = colour(chromium, "body", "backgroundColor")
    assert chromium.evaluate("document.getElementById('theme').textContent") == "Dark"
    chromium.evaluate("document.getElementById('theme').click()")
    assert luminance(colour(chromium, "body", "backgroundColor")) < 0.2 < luminance(light)
    assert chromium.evaluate("document.getElementById('theme').textContent") == "Light"
    chromium.evaluate("document.getElementById('theme').click()")
    assert colour(chromium, "body", "backgroundColor") == light


def test_paper_is_light_even_where_the_screen_is_dark(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["plane"], 1280, dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    chromium.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    assert luminance(colour(chromium, "body", "color")) < 0.1
    assert chromium.evaluate("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert chromium.pdf().startswith(b"%PDF")


def test_the_screenshot_shows_more_than_paper(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, which comes with matplotlib")
    chromium.open(pages["plane"], 1280)
    pixels = np.asarray(image.open(io.BytesIO(chromium.screenshot())).convert("RGB"))
    assert 1200 < pixels.shape[1] <= 1280  # less the scroll bar
    blue, orange = (
        np.all(np.abs(pixels.astype(int) - tone) < 12, axis=2).sum() for tone in ((10, 106, 168), (199, 116, 0))
    )
    assert blue > 300
    assert orange > 300


@pytest.mark.parametrize("name", ["diabetes"])
def test_a_real_model_fits_on_a_telephone(
    chromium: browser.Browser, trained: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    model = trained(name)
    found = fit(model.mlp, model.X_cal, family="shared")
    page = report(found, model.X_cal, model.X_test, model.y_test, options=OPTIONS).save(tmp_path / "report.html")
    assert page.stat().st_size < 1_000_000
    chromium.open(page, 360)
    assert chromium.evaluate("document.documentElement.scrollWidth") == 360
    assert chromium.complaints() == []
