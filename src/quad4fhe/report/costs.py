"""Two sections of the page: what each family would keep, and what encryption costs.

Decides how rungs and plans are tabled. The rungs are `ladder`'s, the plans `circuit.plan`'s; nothing is computed here.
"""

from __future__ import annotations

from quad4fhe.circuit.chain import SECURE_BITS
from quad4fhe.circuit.describe import describe
from quad4fhe.circuit.forecast import groups, readable_bytes, readable_seconds
from quad4fhe.circuit.plan import Plan
from quad4fhe.fitting.diagnostics import Agreement
from quad4fhe.fitting.trials import FamilyTrial
from quad4fhe.fitting.words import percent
from quad4fhe.report.findings import Findings
from quad4fhe.report.ladder import NOT_RUN, Rung
from quad4fhe.report.markup import NOTHING, Markup, command, details, element, join, table
from quad4fhe.report.source import Source


def ladder(found: Findings, source: Source) -> Markup:
    """The family ladder."""
    rungs = found.ladder
    judged = any(rung.estimate is not None for rung in rungs)
    tested = any(rung.test is not None for rung in rungs)
    head = ["family", "regime", "free numbers", "kept, calibration"]
    head += ["kept, test"] * tested + ["kept, cross-validated"] * judged + ["fitted in"]
    rows = [_rung(rung, tested, judged) for rung in rungs]
    reasons: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.reason:
            reasons.setdefault(rung.reason, []).append(rung.name)
    parts = [
        element("h2", "The family ladder"),
        element(
            "p",
            "What each family of replacement keeps of this model, on the same samples. More free numbers can keep more "
            "decisions, and under encryption every family costs the same: affine, square, affine.",
        ),
        table("What each family keeps", head, rows, text=2),
    ]
    parts += [element("p", f"{'; '.join(names)}: {reason}.") for reason, names in reasons.items()]
    if NOT_RUN in reasons:
        parts.append(element("p", "The larger families take longest to fit. To see them all:"))
        parts.append(command(source.ladder()))
    return element("section", *parts, id="ladder")


def _rung(rung: Rung, tested: bool, judged: bool) -> list[str]:
    own = join([rung.name, " ", element("span", "this fit", **{"class": "mark"})]) if rung.own else rung.name
    row = [own, rung.regime or NOTHING, f"{rung.numbers:,}", _kept(rung.calibration)]
    if tested:
        row.append(_kept(rung.test))
    if judged:
        row.append(NOTHING if rung.estimate is None else estimate(rung.estimate))
    return [*row, NOTHING if rung.seconds is None else readable_seconds(rung.seconds)]


def estimate(trial: FamilyTrial) -> str:
    """A cross-validated agreement with its standard error."""
    return f"{percent(trial.agreement)} ± {100 * trial.spread:.2f}"


def _kept(part: Agreement | None) -> str:
    return NOTHING if part is None else percent(part.agreement)


def encryption(found: Findings, source: Source) -> Markup:
    """Both layouts, their parameters and their bill."""
    options, plans = found.options, found.plans
    heads: list[str] = [f"{plan.layout}, {_samples(plan.samples)}" for plan in plans]
    heads[0] = join([heads[0], " ", element("span", "taken", **{"class": "mark"})])
    columns = [_bill(plan) for plan in plans]
    rows = [[row[0][0], *(cell[1] for cell in row)] for row in zip(*columns, strict=True)]
    said = (
        "Parameters chosen for this fit, and the bill. Layout batch puts many samples into each ciphertext and needs "
        "no keys; layout packed answers a few samples at a time, fast. Both are CKKS at 128-bit security. "
        f"For {_samples(options.samples)}, {plans[0].layout} is taken."
    )
    if options.widen:
        said += f" The box of inputs is the calibration range, widened by {options.widen:g} of it on both sides."
    if len({plan.layout for plan in plans}) == 1:
        said += f" A hidden layer of {found.fit.mlp.units:,} units does not fit layout packed."
    caption = f"Plans at precision {options.precision}; times are forecasts for one core of {_machine(plans[0])}"
    parts = [element("h2", "Under encryption"), element("p", said), table(caption, ["", *heads], rows)]
    for plan in plans:
        made = source.plan(plan.samples, plan.layout, plan.precision, options.widen)
        text = element("pre", describe(plan))
        summary = f"{plan.layout}, {_samples(plan.samples)}, in words"
        parts.append(details(summary, text, element("p", "Make it again:"), command(made)))
    return element("section", *parts, id="encryption")


def _samples(count: int) -> str:
    return "one sample" if count == 1 else f"{count:,} samples"


def _machine(plan: Plan) -> str:
    return f"{plan.forecast.machine} machine"


def _bill(plan: Plan) -> list[tuple[str, str]]:
    bill, chain, error = plan.forecast, plan.chain, plan.error
    requests = groups(plan.samples, plan.per_request)
    close = "none" if plan.kept else f"{len(error.close):,} of {plan.calibration:,}"
    return [
        ("ring N", f"{chain.ring:,}"),
        ("modulus, bits (128-bit security allows)", f"{chain.bits} ({SECURE_BITS[chain.ring]})"),
        ("primes, bits", " + ".join(str(q.bit_length()) for q in chain.every)),
        ("samples in a request", f"{plan.per_request:,}"),
        ("requests", f"{requests:,}"),
        ("upload", readable_bytes(bill.upload_bytes)),
        ("download", readable_bytes(bill.download_bytes)),
        ("evaluation keys, once", readable_bytes(bill.key_bytes) if bill.key_bytes else "none"),
        ("client time", readable_seconds(bill.client_seconds)),
        ("server time", readable_seconds(bill.server_seconds)),
        ("time a sample", readable_seconds(bill.seconds / plan.samples)),
        ("typical error of a deciding difference", f"{error.typical:.2g}"),
        ("largest error forecast", f"{error.bound:.2g}"),
        ("calibration decisions within reach of the error", close),
    ]
