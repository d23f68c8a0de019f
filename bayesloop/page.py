"""The page of a report: findings, figures and templates to one HTML file that loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

import bayesloop
from bayesloop import views
from bayesloop.answer import QUESTION, answer, data_facts, fit_command, methods, prior_table
from bayesloop.console import FORMATS
from bayesloop.findings import Findings
from bayesloop.growth import DEFINITIONS
from bayesloop.posterior import attribute
from bayesloop.wording import minus, percent

VIEWS = {
    "comparison": views.comparison_view, "matched": views.matched_view, "assumptions": views.assumptions_view,
    "parameters": views.parameters_view, "optimum": views.optimum_view, "exponents": views.exponents_view,
    "equivalent": views.equivalent_view, "runs": views.runs_view, "robust": views.robust_view,
}
WIDEST, NARROWEST = 8.3, 5.3  # rem for an inch of a figure: 8 points are 13 pixels, or 8, below which it scrolls
LONG = 40  # letters from which a column of text may be broken into lines
CAPTIONS = {
    "forest": "φ: median, 50 % and 95 % interval. 0: a recurrence adds nothing; 1: it is worth a block of its own.",
    "differences": "Δφ against {reference}, draw by draw: median, 50 % and 95 % interval.",
    "iso_flop": "{probe}: loss against size, a curve for each budget; band: 95 % of the expected loss; diamond: its "
                "minimum.",
    "frontier": "{probe}: compute-optimal loss against compute for each r, among the sizes run; band: 95 %; crosses: "
                "minima of parabolas through the runs, without a law.",
    "optimum": "{probe}: loss, size and tokens of the compute-optimal model; bands: 95 %; crosses: optima of the runs "
               "alone.",
    "residuals": "Observed minus expected loss of every run, a column for each budget and r; a column that lies off "
                 "zero as a whole is an error that its runs share.",
    "curves": "Training loss of every run against tokens; markers: evaluations.",
}


@dataclass(frozen=True)
class Drawn:
    """A figure: what it shows (a key of `CAPTIONS`), the probe it is about, if one, its width and its SVG."""

    kind: str
    subject: str
    inches: float
    svg: bytes

    @property
    def uri(self) -> str:
        """The SVG as a data URI; an image of its own, so that names inside two figures cannot meet."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


def render(found: Findings, drawn: Mapping[str, Drawn]) -> str:
    """The page.

    Parameters
    ----------
    found : Findings
    drawn : mapping of str to Drawn
        Figures by name, in their order.

    Returns
    -------
    str
        HTML that loads nothing from elsewhere.
    """
    environment = jinja2.Environment(loader=jinja2.PackageLoader("bayesloop"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["minus"] = minus
    post = found.post
    shown = {name: VIEWS.get(name, pd.DataFrame.reset_index)(table) if name != "excluded" else table
             for name, table in found.tables.items()}
    shown |= {"cells": views.cells_view(found.check), "coverage": views.coverage_view(found.check),
              "sensitivity": views.sensitivity_view(found.check), "priors": prior_table(post)}
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for name, figure in drawn.items():
        caption = CAPTIONS[figure.kind].format(probe=figure.subject, reference=found.reference)
        by_kind.setdefault(figure.kind, []).append({
            "name": name, "uri": figure.uri, "caption": caption, "widest": round(WIDEST * figure.inches, 1),
            "narrowest": round(NARROWEST * figure.inches, 1)})
    return environment.get_template("report.html").render(
        question=QUESTION, answer=answer(found), found=found, attrs=post.attrs, facts=data_facts(post), figures=by_kind,
        tables={name: as_html(table, name) for name, table in shown.items()}, methods=methods(found),
        command=fit_command(post), versions=attribute(post, "versions", {}),
        version=bayesloop.__version__, definitions=DEFINITIONS, percent=percent(found.prob))


def as_html(table: pd.DataFrame, name: str) -> Markup:
    """A table as HTML: everything escaped, numbers to four digits and to the right."""
    formats: dict[Any, Any] = {column: _as_number(FORMATS.get(str(column), "{:.4g}"))
                               for column in table.columns if table[column].dtype.kind == "f"}
    formats |= {column: lambda text: str(escape(minus(str(text)))) for column in table.columns if column not in formats}
    numeric = [column for column in table.columns if _is_numeric(table[column])]
    style = table.reset_index(drop=True).style.hide(axis="index").format(formats, na_rep="")
    style = style.format_index(escape="html", axis=1).set_uuid(name)
    looks = dict.fromkeys(numeric, "text-align: right")
    looks |= {column: "white-space: normal; min-width: 18rem" for column in table.columns
              if column not in numeric and table[column].astype(str).str.len().max() > LONG}
    style = style.set_table_styles({column: [{"selector": "", "props": look}] for column, look in looks.items()})
    return Markup(style.to_html())  # cells and headings are escaped by the formats above


def _as_number(form: str) -> Callable[[float], str]:
    return lambda value: minus(form.format(value))


def _is_numeric(column: pd.Series) -> bool:
    """Whether a column holds numbers, or text that starts with one."""
    if column.dtype.kind in "iuf":
        return True
    texts = [str(value).lstrip("[+−-") for value in column if str(value)]
    return bool(texts) and all(text[:1].isdigit() for text in texts)
