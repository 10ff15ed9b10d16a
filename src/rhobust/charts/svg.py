"""Figures as files: SVG with hints at the points, or PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rhobust.errors import ConfigError
from rhobust.support.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def to_svg(figure: Figure, title: str, hints: Mapping[str, Sequence[str]] | None = None) -> str:
    """The figure as an SVG element to put into a page, the same bytes at every drawing.

    `hints` are texts that show when the pointer rests on a marker: for the gid of a line, one for each of its points.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(buffer.getvalue())
    groups = {group.get("id"): group for group in root.iter(f"{{{_SVG}}}g")}
    for line, texts in (hints or {}).items():
        for point, text in zip(groups[line].iter(f"{{{_SVG}}}use"), texts, strict=True):
            ElementTree.SubElement(point, f"{{{_SVG}}}title").text = text
    for group in groups.values():  # a page may hold many figures, and an id only once
        group.attrib.pop("id", None)
    for part in (*root.findall(f"{{{_SVG}}}metadata"), *root.findall(f"{{{_SVG}}}defs")):
        root.remove(part)  # the one on top holds a style for every element of the page
    for side in ("width", "height"):
        del root.attrib[side]
    root.attrib |= {"role": "img", "aria-label": title, "stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ElementTree.tostring(root, encoding="unicode")


def check_path(path: Path | None) -> None:
    """Refuse a kind of file that no figure is written as; before the work, not after it."""
    if path is not None and path.suffix not in (".png", ".svg"):
        raise ConfigError([f"a figure is written as .png or .svg, not '{path.name}'"])


def save(figure: Figure, path: Path, hints: Mapping[str, Sequence[str]] | None = None) -> None:
    """Write PNG or SVG, by the suffix, atomically; an SVG has the hints."""
    check_path(path)
    kind = path.suffix.lstrip(".")
    if kind == "svg":
        write_atomically(path, to_svg(figure, path.stem, hints).encode())
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomically(path, buffer.getvalue())
