"""Results that show themselves: aligned text, and HTML in which no text becomes an element."""

from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

from rhobust.support.display import Displayed, Table

HOSTILE = "<script>alert('&')</script>"


class Elements(HTMLParser):
    """The elements of a page, each closed by an end of its own, and the text of every cell and paragraph."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


@dataclass(frozen=True)
class Result(Displayed):
    """Shows what it holds."""

    parts: Sequence[Table | str]

    def _shown(self) -> Sequence[Table | str]:
        return self.parts


def test_names_are_aligned_left_and_numbers_right_and_every_cell_is_one_line() -> None:
    table = Table("two\nlines", ["attack", "n"], [["pgd", "1"], ["of two\n words", "1234"]])
    assert str(table).splitlines() == [
        "two lines",
        "attack           n",
        "------------  ----",
        "pgd              1",
        "of two words  1234",
    ]


def test_a_table_without_rows_has_its_head() -> None:
    assert str(Table("nothing", ["attack", "error"], [])) == "nothing\nattack  error\n------  -----"


def test_lines_stand_together_and_tables_apart() -> None:
    table = Table("caption", ["a"], [["1"]])
    assert str(Result(["first", table, table, "second", "third"])).split("\n\n") == [
        "first",
        str(table),
        str(table),
        "second\nthird",
    ]
    assert str(Result([])) == ""


def test_no_text_becomes_an_element_and_none_is_lost() -> None:
    found = Elements(Result([Table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, "1"]]), HOSTILE])._repr_html_())
    assert found.seen == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert [text for text in found.texts if text] == [HOSTILE, HOSTILE, "n", HOSTILE, "1", HOSTILE]


def test_a_page_keeps_its_colors() -> None:
    assert "color" not in Result([Table("caption", ["a"], [["1"]]), "line"])._repr_html_()
