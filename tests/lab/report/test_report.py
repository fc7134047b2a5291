"""The report: what is written can be read again, and the page needs nothing but itself."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from eigengrad.lab.report import Finding, Outcome, Table, build_page, figures, load_outcomes, scoreboard
from eigengrad.lab.report.outcome import Figure
from eigengrad.lab.report.scoreboard import FOLDED, board

CONDITIONS = {"scale": "small", "data": "CIFAR-10, 3,000 training images", "epochs": "5", "trials": "3"}
TABLE = Table(
    "numbers",
    "Errors <of> methods & more",
    ("method", "d", "paper", "ours"),
    (("SVD", 4, "4.54 ± 0.08", 61.25), ("PI | Taylor", 8, None, 62.123456)),
    CONDITIONS,
    "A note.",
)


def draw(folder, name):
    with figures.style() as plt:
        figure, axes = plt.subplots(figsize=(4, 3))
        axes.plot([0, 1], [1, 3], label="curve")
        axes.legend()
        return figures.save(figure, folder, name)


def outcome(folder, experiment="table4", scale="small"):
    return Outcome(
        experiment,
        f"Title of {experiment}",
        scale,
        {name: value for name, value in CONDITIONS.items() if name != "scale"},
        "15 trials of 350 epochs.",
        (TABLE,),
        (Figure(draw(folder, "curves"), "Curves of <everything>."),),
        (
            Finding("A claim of the paper", "confirmed", "3 of 3."),
            Finding("Another", "undecided", "Too few runs.", "needs 12 more pairs"),
        ),
        ("Something to know.",),
        12.5,
    )


class Page(HTMLParser):
    """What a browser would look at."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.ids, self.open, self.text, self.tags = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "poster", "action"):
                self.addresses.append((tag, value))
            if name == "id":
                self.ids.append(value)
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_markdown_of_a_table_has_its_conditions_and_a_dash_for_what_does_not_exist():
    text = TABLE.markdown()
    assert "scale: small; data: CIFAR-10, 3,000 training images; epochs: 5; trials: 3" in text
    assert "| SVD | 4 | 4.54 ± 0.08 | 61.25 |" in text
    assert "| PI \\| Taylor | 8 | – | 62.12 |" in text


def test_csv_of_a_table_has_the_conditions_in_every_row_and_all_digits():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert [row["ours"] for row in rows] == ["61.25", "62.123456"]
    assert rows[1]["paper"] == ""
    assert all(row[name] == value for row in rows for name, value in CONDITIONS.items())


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells; expected 2"):
        Table("t", "T", ("a", "b"), ((1, 2), (3,)))


def test_a_verdict_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'maybe'; expected one of confirmed, refuted, equivalent, undecided"):
        Finding("c", "maybe", "e")


def test_an_outcome_is_read_as_it_was_written(tmp_path):
    written = outcome(tmp_path)
    readme = written.write(tmp_path)
    assert Outcome.load(tmp_path) == written
    text = readme.read_text()
    for part in ("15 trials of 350 epochs", "61.25", "**confirmed**. A claim", "(curves.png)", "Something to know"):
        assert part in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "curves.png",
        "curves.svg",
        "numbers.csv",
        "outcome.json",
    ]


@pytest.mark.parametrize("damage", ["{", '{"experiment": "table4"}', "\x00"])
def test_a_damaged_outcome_is_named_and_does_not_stop_the_page(tmp_path, damage):
    folder = tmp_path / "table4" / "small"
    outcome(folder).write(folder)
    broken = tmp_path / "table3" / "small"
    broken.mkdir(parents=True)
    (broken / "outcome.json").write_text(damage)
    with pytest.raises(ValueError, match=re.escape(str(broken / "outcome.json"))):
        Outcome.load(broken)
    text = build_page(tmp_path).read_text()
    assert str(broken / "outcome.json") in text
    assert "Title of table4" in text


def test_the_page_needs_nothing_but_itself(tmp_path):
    for experiment, scale in (("table4", "small"), ("table4", "smoke"), ("fig3", "small")):
        folder = tmp_path / experiment / scale
        outcome(folder, experiment, scale).write(folder)
    path = build_page(tmp_path, ["fig3", "table4"])
    assert path == tmp_path / "report" / "index.html"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []  # every element is closed
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    images = [value for tag, value in page.addresses if tag == "img"]
    assert len(images) == 3
    assert all(value.startswith(("data:image/svg+xml;base64,", "data:image/png;base64,")) for value in images)
    links = [value for tag, value in page.addresses if tag == "a"]
    assert links
    assert all(link.startswith("#") and link[1:] in page.ids for link in links)
    assert len(page.ids) == len(set(page.ids)) == 3
    assert not re.search(r"url\(|@import|https?://", text)


def test_the_page_shows_numbers_conditions_and_verdicts_in_the_order_of_the_paper(tmp_path):
    for experiment in ("table4", "fig3"):
        folder = tmp_path / experiment / "small"
        outcome(folder, experiment).write(folder)
    page = Page(build_page(tmp_path, ["fig3", "table4"]).read_text())
    text = " ".join(page.text)
    for part in ("61.25", "62.12", "4.54 ± 0.08", "epochs: 5", "trials: 3", "15 trials of 350 epochs", "confirmed"):
        assert part in text
    assert "Errors <of> methods & more" in text  # escaped in the file, plain for the reader
    assert page.ids == ["fig3-small", "table4-small"]


def test_a_large_drawing_is_embedded_as_a_picture_and_a_missing_one_is_said(tmp_path):
    folder = tmp_path / "fig3" / "small"
    outcome(folder).write(folder)
    (folder / "curves.svg").write_text("<svg>" + " " * 300_000 + "</svg>")
    assert "data:image/png;base64," in build_page(tmp_path).read_text()
    (folder / "curves.svg").unlink()
    (folder / "curves.png").unlink()
    assert "image missing" in build_page(tmp_path).read_text()


def test_a_page_of_nothing_says_how_to_begin(tmp_path):
    assert "eigengrad reproduce" in build_page(tmp_path).read_text()


def test_a_figure_drawn_twice_is_the_same_file_and_small(tmp_path):
    draw(tmp_path / "a", "f")
    draw(tmp_path / "b", "f")
    for ending in ("png", "svg"):
        first, second = ((tmp_path / which / f"f.{ending}").read_bytes() for which in "ab")
        assert first == second
        assert len(first) < 200_000


def test_writing_again_replaces_the_outcome(tmp_path):
    first = outcome(tmp_path)
    first.write(tmp_path)
    replace(first, notes=("Another note.",)).write(tmp_path)
    assert Outcome.load(tmp_path).notes == ("Another note.",)
    assert not list(tmp_path.glob("*.part"))


def test_the_scoreboard_has_the_verdict_effect_and_runs_of_every_claim(tmp_path):
    folder = tmp_path / "fidelity" / "small"
    findings = (
        Finding(
            "(ours) No <b>approximation</b>", "confirmed", "It loses 15 %.", effect="15 % (12 to 18 %)", runs="9 runs"
        ),
        Finding("A | B", "undecided", "p < 0.001", "needs 3 more pairs"),
        Finding("Same", "equivalent", "e", "within 0.2 points"),
        Finding("One run", "undecided", "e", "protocol check"),
    )
    replace(outcome(folder, "fidelity"), findings=findings, command="eigengrad reproduce x").write(folder)
    outcomes, damaged = load_outcomes(tmp_path)
    text = scoreboard(outcomes)
    assert not damaged
    assert text.startswith("> **No &lt;b>approximation&lt;/b>** — confirmed. It loses 15 %.")
    assert "3 claims: 1 confirmed, 0 refuted, 1 equivalent, 1 undecided." in text
    assert "| (ours) No &lt;b>approximation&lt;/b> | 15 % (12 to 18 %) | 9 runs | [`fidelity-small`](#" in text
    assert "| A \\| B | p &lt; 0.001 | needs 3 more pairs |" in text
    assert "| Same | e | within 0.2 points |" in text
    places = [text.index(f"### {heading}") for heading in ("Confirmed", "Equivalent", "Undecided", "Details")]
    assert places == sorted(places)
    assert "### Refuted" not in text
    assert "Protocol checks, with one run a setting, which compare nothing: [`fidelity-small`]" in text
    assert "`eigengrad reproduce x`" in text
    assert scoreboard([]) == "Nothing has been run yet.\n"


def test_the_page_begins_with_every_claim(tmp_path):
    folder = tmp_path / "table4" / "small"
    outcome(folder).write(folder)
    page = Page(build_page(tmp_path).read_text())
    text = " ".join(page.text)
    assert text.index("Undecided") < text.index("needs 12 more pairs") < text.index("Every experiment")


def test_the_page_begins_with_what_matters_to_users(tmp_path):
    for name in ("table4", "fidelity"):
        outcome(tmp_path / name / "small", name).write(tmp_path / name / "small")
    page = build_page(tmp_path).read_text()
    claim = outcome(tmp_path / "x", "fidelity").findings[0].claim
    assert page.index("<p class='finding'>") < page.index(claim) < page.index("<h2 class='board'>")


def test_what_fewer_runs_say_of_a_claim_is_folded_unless_it_contradicts(tmp_path):
    def judged(name, *verdicts):
        findings = tuple(Finding(claim, verdict, "e") for claim, verdict in verdicts)
        return tmp_path / name / "small", replace(outcome(tmp_path / name / "small", name), findings=findings)

    outcomes = [
        judged("errors", ("A", "confirmed"), ("B", "confirmed"), ("C", "undecided"), ("D", "equivalent")),
        judged(
            "table4", ("A", "confirmed"), ("B", "refuted"), ("C", "confirmed"), ("D", "undecided"), ("E", "undecided")
        ),
    ]
    found = {group: [(o.experiment, f.claim) for o, f in rows] for group, rows in board(outcomes, ("errors",)).items()}
    assert found == {
        "confirmed": [("errors", "A"), ("errors", "B"), ("table4", "C")],
        "refuted": [("table4", "B")],
        "equivalent": [("errors", "D")],
        "undecided": [("errors", "C")],
        FOLDED: [("table4", "A"), ("table4", "D"), ("table4", "E")],
    }
    text = scoreboard(outcomes, deciding=("errors",))
    assert "6 claims: 3 confirmed, 1 refuted, 1 equivalent, 1 undecided." in text
    assert "<summary>From fewer runs: 3 more rows." in text
