"""The page says what the fit file says, to everyone, and nothing that a class name smuggles in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import CertificateError, Fit, InputError, fit, plan
from quad4fhe.cli import main
from quad4fhe.fitting.warnings import too_few
from quad4fhe.layouts import LAYOUTS
from quad4fhe.planning.costs import readable_bytes, readable_seconds
from support import family_fits
from support.cases import LOSSLESS, LOSSLESS_X, PAIRS, PAIRS_X, PLANE, PLANE_X
from support.pages import Node, parse

pytest.importorskip("matplotlib", reason="the report needs matplotlib: pip install 'quad4fhe[report]'")

from quad4fhe.report import SECTIONS, Findings, Options, Picture, Report, Section, Source, Tile, report

QUICK = Options(ladder="none", samples=64)
FREE = fit(PLANE.mlp, PLANE_X, threshold="free", family="shared")
FITS: dict[str, tuple[Callable[[], Fit], Any]] = {
    "lossless": (lambda: LOSSLESS, LOSSLESS_X),
    "plane": (lambda: PLANE, PLANE_X),
    "free threshold": (lambda: FREE, PLANE_X),
    "pairs": (lambda: PAIRS, PAIRS_X),
    "unitwise": (lambda: family_fits.pairs("unitwise"), PAIRS_X),
    "head": (lambda: family_fits.pairs("head"), PAIRS_X),
    "two classes, auto": (lambda: family_fits.plane("auto"), PLANE_X),
    "two classes, unitwise": (lambda: family_fits.plane("unitwise"), PLANE_X),
}
NASTY = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "$\\frac$ & _x_ 'y'", "名前\x00\n</svg>"]


def unseen(found: Fit, n: int = 60) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=(n, found.mlp.features))


@cache
def saved(name: str) -> tuple[bytes, Node]:
    """The fit file of one of FITS, and the page about what was read back from it."""
    found, X = FITS[name][0](), FITS[name][1]
    data = found.to_bytes()
    return data, parse(report(Fit.from_bytes(data), X, unseen(found), options=QUICK).html())


def manifest(data: bytes) -> dict[str, Any]:
    """The JSON in a fit file, read without the library."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found: dict[str, Any] = json.loads(header["__metadata__"]["quad4fhe"])["manifest"]
    return found


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key) if isinstance(document, list) else key]
    return document


def is_rounding(shown: str, value: float) -> bool:
    """Whether the text is the value to as many places as it shows."""
    text = shown.replace(",", "").replace("\N{MINUS SIGN}", "-")
    number = Decimal(text.removesuffix("%"))
    exact = Decimal(value) * (100 if text.endswith("%") else 1)
    return abs(number - exact) <= Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)


@pytest.mark.parametrize("name", FITS)
def test_every_number_of_the_fit_file_is_on_the_page_as_it_is(name: str) -> None:
    found = FITS[name][0]()
    data, page = saved(name)
    document = manifest(data)
    shown = [node for node in page.find("data") if "data-fit" in node.attributes]
    for node in shown:
        path, value = node.attributes["data-fit"], at(document, node.attributes["data-fit"])
        if isinstance(value, str):
            assert node.attributes["value"] == node.text == value, path
        else:
            assert float(node.attributes["value"]) == value, path
            assert is_rounding(node.text, value), (path, node.text, value)
    places = {node.attributes["data-fit"] for node in shown}
    wanted = {"regime", "family", "seed", "diagnostics.margin", "certificate.statement"}
    wanted |= {"certificate.samples", "certificate.calibration_sha256"}
    wanted |= {"alpha", "beta", "eta"} if found.family == "shared" else set()
    wanted |= {"tau"} if found.tau else set()
    wanted |= {"diagnostics.slack.count"} if found.diagnostics.slack is not None else set()
    assert wanted <= places


@pytest.mark.parametrize("name", FITS)
def test_what_a_file_says_of_its_making_stands_under_one_heading_that_says_so(name: str) -> None:
    page = saved(name)[1]
    (stated,) = page.find("section", id="stated")
    assert "not checked and not certified" in " ".join(stated.text.split())
    inside = {node.attributes["data-fit"] for node in stated.find("data")}
    assert {"regime", "seed", "threshold", "diagnostics.hard"} <= inside
    everywhere = [node.attributes["data-fit"] for node in page.find("data")]
    outside = set(everywhere) - inside
    assert len(everywhere) == len(inside) + len(outside)  # each place once, so none of those inside is outside too
    assert {place.split(".")[0] for place in outside} <= {"certificate", "family", "alpha", "beta", "eta", "tau"}


@pytest.mark.parametrize("name", FITS)
def test_the_verdict_is_one_sentence_with_the_counts(name: str) -> None:
    found, X = FITS[name][0](), FITS[name][1]
    page = saved(name)[1]
    (verdict,) = page.find("p", class_="verdict")
    lost = int(np.count_nonzero(found.mlp.decide(X) != found.predict(X)))
    share = f"{100 * (len(X) - lost) / len(X):.2f}% of {len(X)}"
    assert (share if lost else f"all {len(X)}") in verdict.text
    assert verdict.text.count(". ") == 0
    few = too_few(len(X), found.mlp.classes)
    assert ("exactly" in verdict.text) == (found.certificate.statement == "lossless" and not few)
    assert ("too few for" in verdict.text) == few


@pytest.mark.parametrize("name", FITS)
def test_every_figure_has_a_text_alternative_and_ids_are_unique(name: str) -> None:
    found, page = FITS[name][0](), saved(name)[1]
    figures = page.find("figure")
    assert len(figures) >= 2
    for figure in figures:
        (picture,) = figure.find("svg")
        assert picture.attributes["role"] == "img"
        assert len(picture.attributes["aria-label"]) > 40
        (caption,) = figure.find("figcaption")
        assert len(caption.text) > 20
    ids = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    names = {figure.attributes["id"] for figure in figures}
    assert ("picture-plane" in names) == (found.mlp.classes == 2)


def test_the_page_needs_nothing_from_outside() -> None:
    text = report(PLANE, PLANE_X, options=QUICK).html()
    assert not re.findall(r"https?:|@import|//cdn", text)
    assert all(found.startswith("#") for found in re.findall(r"url\(['\"]?([^)]*)", text))
    links = [value for node in parse(text).walk() for key, value in node.attributes.items() if key in ("src", "href")]
    assert all(value.startswith("#") or value == "data:," for value in links)


def test_class_names_are_text_whatever_they_hold() -> None:
    made = report(PAIRS, PAIRS_X, unseen(PAIRS), classes=NASTY, options=QUICK, source=Source(title="<b>t</b>"))
    page = parse(made.html())
    assert len(page.find("script")) == 1
    assert not page.find("img")
    assert not page.find("b", onerror="alert(2)")
    assert [node.text for node in page.find("h1")] == ["<b>t</b>"]
    cells = {node.text for node in page.find("td")}
    assert {NASTY[0], NASTY[1], NASTY[2], "名前  </svg>"} <= cells
    (picture,) = [figure for figure in page.find("figure") if figure.attributes["id"] == "picture-by-class"]
    labels = [node.text for node in picture.find("text")]
    assert any(label.startswith("$\\frac$ & _x_ 'y' (") for label in labels)
    for picture_file in made.pictures:
        picture_file.png()  # a warning of matplotlib about a missing letter would be an error here


@pytest.mark.parametrize(
    ("classes", "says"),
    [(["a", "b", "c"], "3 class names were given, and the model has 4"), (["a", "b", "c", "a"], "different and not")],
)
def test_names_that_do_not_fit_are_refused(classes: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        report(PAIRS, PAIRS_X, classes=classes, options=QUICK)


def test_agreement_by_class_is_what_counting_gives() -> None:
    X = unseen(PAIRS, 300)
    page = parse(report(PAIRS, PAIRS_X, X, options=QUICK).html())
    (table,) = [t for t in page.find("table") if t.find("caption")[0].text == "Decisions kept, by class"]
    rows = [[cell.text for cell in row.find("td")] for row in table.find("tr")[1:]]
    for c, row in enumerate(rows):
        expected = [f"class {c}"]
        for part in (PAIRS_X, X):
            chosen = part[PAIRS.mlp.decide(part) == c]
            lost = int(np.count_nonzero(PAIRS.predict(chosen) != c))
            expected += [str(len(chosen)), str(lost), f"{100 * (1 - lost / len(chosen)):.2f}%"]
        assert row == expected


def test_the_bill_is_the_plans_own() -> None:
    page = saved("pairs")[1]
    (section,) = page.find("section", id="encryption")
    rows = {row.find("td")[0].text: [cell.text for cell in row.find("td")[1:]] for row in section.find("tr")[1:]}
    taken = plan(PAIRS, samples=64, X=PAIRS_X)
    others = [plan(PAIRS, samples=64, layout=name, X=PAIRS_X) for name in LAYOUTS.names() if name != taken.layout]
    plans = [taken, *others, plan(PAIRS, samples=1, X=PAIRS_X)]
    assert rows["ring N"] == [f"{made.chain.ring:,}" for made in plans]
    assert rows["upload"] == [readable_bytes(made.forecast.upload_bytes) for made in plans]
    assert rows["server time"] == [readable_seconds(made.forecast.server_seconds) for made in plans]
    heads = [cell.text for cell in section.find("tr")[0].find("th")]
    assert heads[1] == f"{taken.layout}, 64 samples taken"


def test_the_commands_on_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    PLANE.save("my fit.safetensors")
    np.savez("calib.npz", X=PLANE_X)
    source = Source(fit="my fit.safetensors", calibration="calib.npz")
    page = parse(report(PLANE, PLANE_X, options=QUICK, source=source).html())
    commands = [code.text for code in page.find("code") if code.text.startswith("quad4fhe ")]
    assert "quad4fhe verify 'my fit.safetensors' calib.npz" in commands
    assert sum(command.startswith("quad4fhe plan ") for command in commands) == 3
    for command in commands:
        if not command.startswith("quad4fhe report "):
            assert main(shlex.split(command)[1:]) == 0


def test_a_fit_whose_certificate_fails_gets_no_page(tmp_path: Path) -> None:
    with pytest.raises(CertificateError):
        report(PLANE, PLANE_X + 1e-9, options=QUICK)


def test_labels_give_accuracies_and_labels_that_mean_nothing_do_not() -> None:
    X = unseen(PAIRS)
    ids = PAIRS.mlp.decide(X)
    names = np.array(["ant", "bee", "cow", "dog"])
    for y in (ids, names[ids]):
        shown = report(PAIRS, PAIRS_X, X, y, classes=names.tolist(), options=QUICK).findings.test
        assert shown is not None
        assert shown.accuracy == (1.0, float(np.mean(PAIRS.predict(X) == ids)))
    strange = report(PAIRS, PAIRS_X, X, np.array(["?"] * len(X)), options=QUICK)
    assert strange.findings.test is not None
    assert strange.findings.test.accuracy is None
    assert "Accuracy" not in strange.html()


def test_one_lost_decision_among_many_is_not_shown_as_all() -> None:
    from quad4fhe.fitting.summary import percent

    assert percent(1.0) == "100.00%"
    assert percent(1 - 1e-6) == "99.9999%"
    assert percent(0.98766) == "98.77%"


def test_a_notebook_and_the_page_say_the_same_verdict() -> None:
    made: Report = report(PAIRS, PAIRS_X, options=QUICK)
    assert parse(PAIRS._repr_html_()).find("p")[0].text == made.verdict


# --- sections ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Toy(Section):
    """How many samples each class has; nothing for more than two classes."""

    title = "A toy & more"
    template = "<p>{{ words }}</p>{{ figures(pictures, table('Counts', ('class', 'samples'), rows)) }}"
    counts: list[int]

    @classmethod
    def find(cls, found: Findings, progress: Any) -> Toy | None:
        if found.fit.mlp.classes != 2:
            return None
        progress("toy", 0, 0)
        return cls(found, np.bincount(found.calibration.target).tolist())

    def values(self) -> dict[str, Any]:
        return {"words": "<b>1</b>", "rows": list(zip(self.found.classes, self.counts, strict=True))}

    @property
    def pictures(self) -> list[Picture]:  # type: ignore[override]
        alt = "One point, which stands for all that a section of one file can show."
        caption = "The caption of a toy's picture."
        return [Picture("toy", "Toy", alt, caption, lambda figure, _: figure.subplots().plot([0], [0]), (), ())]

    @property
    def tiles(self) -> list[Tile]:
        return [Tile("Toy", str(sum(self.counts)), "samples")]

    def to_dict(self) -> dict[str, Any]:
        return {"toy": self.counts}


def test_a_section_is_one_class_and_one_name() -> None:
    with SECTIONS.added("toy", Toy):
        made, without = report(PLANE, PLANE_X, options=QUICK), report(PAIRS, PAIRS_X, options=QUICK)
    page = parse(made.html())
    (section,) = page.find("section", id="toy")
    assert section.find("h2")[0].text == "A toy & more"
    assert section.find("p")[0].text == "<b>1</b>"
    counts = np.bincount(PLANE.mlp.decide(PLANE_X)).tolist()
    cells = [cell.text for cell in section.find("td")]
    assert cells == ["class 0", str(counts[0]), "class 1", str(counts[1])]
    assert [figure.attributes["id"] for figure in section.find("figure")] == ["picture-toy"]
    tiles = {tile.find("dt")[0].text: tile.find("dd")[0].text for tile in page.find("dl")[0].find("div")}
    assert tiles["Toy"] == f"{len(PLANE_X)} samples"
    assert made.to_dict()["toy"] == counts
    assert made.pictures[-1].name == "toy"
    assert "toy" not in without.sections
    assert "toy" not in SECTIONS


def test_sections_stand_in_the_order_of_the_registry() -> None:
    ids = [node.attributes["id"] for node in saved("plane")[1].find("section") if "id" in node.attributes]
    assert ids == [name for name in SECTIONS.names() if name in ids]
    assert set(SECTIONS.names()) - set(ids) == {"promise"}


def test_a_template_that_names_what_does_not_exist_is_an_error() -> None:
    class Broken(Toy):
        template = "{{ nonsense }}"

    with SECTIONS.added("broken", Broken):
        made = report(PLANE, PLANE_X, options=QUICK)
    with pytest.raises(Exception, match="'nonsense' is undefined"):
        made.html()
