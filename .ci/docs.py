"""The API reference as HTML: `python -W error .ci/docs.py FOLDER`. What pdoc warns about is an error then."""

from __future__ import annotations

import sys
from pathlib import Path

import pdoc

import bayesloop
from bayesloop import errors, laws, structures, style

MODULES = ["bayesloop", *(f"bayesloop.{name}" for name in (
    "laws", "errors", "structures", "plots", "schema", "architecture"))]


def resolve_lazy_names() -> None:
    """pdoc looks into the module's dictionary, where names that load when first used are not."""
    for name in bayesloop.__all__:
        setattr(bayesloop, name, getattr(bayesloop, name))


def name_tuples() -> None:
    """pdoc asks where a constructor was written; those of named tuples do not say."""
    for one in (laws.Design, errors.Place, style.ProbeStyle):
        one.__new__.__module__ = one.__module__


def list_registries() -> None:
    """Put the entries of each registry at the end of its module's text."""
    tables = {
        laws: [("law", "mean", "source"), *((law.name, law.formula, law.source) for law in laws.LAWS.values())],
        errors: [("errors", "assumes", "misleads"),
                 *((model.name, model.assumes, model.misleads) for model in errors.ERRORS.values())],
        structures: [("phi", "meaning"), *((each.name, each.meaning) for each in structures.STRUCTURES.values()),
                     ("**recipe**", ""), *((each.name, each.meaning) for each in structures.RECIPES.values())],
    }
    for module, (head, *rows) in tables.items():
        lines = [head, ["---"] * len(head), *rows]
        module.__doc__ = f"{module.__doc__}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    bayesloop.__doc__ = f"{bayesloop.__doc__}\n\nModules: {', '.join(f'`{name}`' for name in MODULES[1:])}."
    resolve_lazy_names()
    name_tuples()
    list_registries()
    pdoc.render.configure(docformat="numpy", show_source=False)
    pdoc.pdoc(*MODULES, output_directory=Path(sys.argv[1]))
