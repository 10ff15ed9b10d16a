"""The page of the reproduction: figures, and tables between their marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rhobust.charts import svg
from rhobust.errors import RunError
from rhobust.reproduction.claims import claims_table
from rhobust.reproduction.experiments import FIGURES, FULL, QUICK
from rhobust.reproduction.paper_charts import draw_figure
from rhobust.reproduction.plan import plan
from rhobust.reproduction.store import read_deployed, read_figure, read_sessions
from rhobust.reproduction.tables import deployed_table, sessions_table, tables
from rhobust.support.files import write_atomically

_QUICK = """A quick look at a slice of the data: no result, and no verdict on anything.
The paper's claims are left out, since so little data and training cannot tell whether they hold.

"""
_MARKED = re.compile(r"(<!-- table: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def draw(out: Path, page: Path | None = None, quick: bool = False) -> list[Path]:
    """Figures from the results in `out`; with a page, its tables filled in and the figures in images/paper beside it.

    Without one, the figures and all tables go to `out` itself. What was written, by path; nothing is, if the page
    cannot be filled in. `quick`: which results to ask for, where there are none.
    """
    try:
        return _drawn(out, page, quick)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise RunError(
            f"the results in {out} are not as they were written ({type(problem).__name__}: {problem}); put them back, "
            "or choose another --out"
        ) from problem


def _drawn(out: Path, page: Path | None, quick: bool) -> list[Path]:
    contents = read_all(out, quick)
    if _quick(contents) and page is not None:
        raise RunError(f"{out} holds quick results, and they belong on no page: drop --page, or choose another --out")
    blocks = every_block(out, contents)
    text = _QUICK if _quick(contents) else ""
    text += "\n".join(f"## {name}\n\n{block}\n" for name, block in blocks.items())
    if page is not None:
        text = filled(page, blocks)
    place = out if page is None else page.parent / "images" / "paper"
    made = []
    for name, content in contents.items():
        drawn = draw_figure(content)
        for suffix in (".svg", ".png"):
            made.append(place / f"{name}{suffix}")
            svg.save(drawn, made[-1])
    made.append(page or out / "tables.md")
    write_atomically(made[-1], text.encode())
    return made


def read_all(out: Path, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Every figure's file with something to draw; `quick`: which results to ask for, where there are none."""
    there = {name: read_figure(out, name) for name in FIGURES if (out / f"{name}.json").exists()}
    # Candidates for a knob come first; alone they are nothing to look at.
    contents = {name: content for name, content in there.items() if any("/paper/" in job for job in content["runs"])}
    if not contents:
        how = " --quick" if quick else ""
        raise RunError(f"{out} holds no results to draw; make them: rhobust reproduce all{how} --out {out}")
    return contents


def every_block(out: Path, contents: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Every table by its name; from a quick look, none that judges."""
    found = {} if _quick(contents) else {"claims": claims_table(contents)}
    found |= {**tables(contents), "sessions": sessions_table(read_sessions(out))}
    found["missing"] = missing(contents)
    deployed = read_deployed(out)
    return found | ({"deployed": deployed_table(deployed)} if deployed else {})


def _quick(contents: dict[str, dict[str, Any]]) -> bool:
    return any(content["settings"]["quick"] for content in contents.values())


def missing(contents: dict[str, dict[str, Any]]) -> str:
    """Which trainings of these figures have not been done, for as many seeds as any has."""
    results = {job: result for content in contents.values() for job, result in content["runs"].items()}
    scale = QUICK if _quick(contents) else FULL
    seeds = 1 + max(int(job.rpartition("/")[2]) for job in results if "/paper/" in job)
    left = [f"`{job.name}`" for job in plan(contents, seeds, scale, results)]
    return f"Not trained yet: {', '.join(left)}." if left else "Nothing is missing."


def filled(page: Path, blocks: dict[str, str]) -> str:
    """The page with its tables as they are now; a mark that names no table is an error."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as problem:
        raise RunError(f"{page} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"{page} cannot be read: it is not UTF-8 text") from None
    asked = [match["name"] for match in _MARKED.finditer(text)]
    if strange := [name for name in asked if name not in blocks]:
        raise RunError(f"{page} asks for tables that the results do not have: {', '.join(strange)}")
    return _MARKED.sub(lambda match: f"{match[1]}{blocks[match['name']]}\n{match[3]}", text)
