"""What became of every table and figure of the five papers: no row is missing, and every row leads somewhere."""

import pytest

from benchmarks.papers import coverage, coverage_part, scored
from kvq_core.claims import papers
from kvq_core.presets import preset

# As the papers number them.
COUNTS = {"squat": (3, 6), "svdq": (6, 4), "commvq": (11, 4), "innerq": (4, 5), "qaq": (3, 4)}


@pytest.mark.parametrize("name", list(COUNTS))
def test_no_table_or_figure_is_left_out(name):
    told = coverage()[name]
    tables, figures = COUNTS[name]
    assert (told["tables"], told["figures"]) == COUNTS[name]
    wanted = [f"Table {i + 1}" for i in range(tables)] + [f"Figure {i + 1}" for i in range(figures)]
    assert list(told["rows"]) == wanted


def test_every_row_has_claims_or_a_reason_and_names_what_there_is():
    assert set(coverage()) == set(papers()) == set(COUNTS)
    for name, told in coverage().items():
        known = {claim.id for claim in (*papers()[name].claims, *papers()[name].latency)}
        for where, row in told["rows"].items():
            assert bool(row.get("claims")) != bool(row.get("why")), f"{name}, {where}"
            assert set(row.get("claims", ())) <= known, f"{name}, {where}"
            assert "preset" not in row or preset(row["preset"])


def test_a_claim_about_a_table_or_figure_is_in_its_row():
    for name, told in coverage().items():
        named = {claim for row in told["rows"].values() for claim in row.get("claims", ())}
        for claim in (*papers()[name].claims, *papers()[name].latency):
            about = "Table" in claim.where or "Figure" in claim.where
            assert not about or claim.id in named, claim.id


def test_scores_lead_to_their_commands():
    assert scored("CommVQ") == {"Table 1", "Table 2", "Table 3", "Table 4"}
    row = next(line for line in coverage_part().splitlines() if line.startswith("| InnerQ | Table 1 |"))
    assert "--paper innerq" in row and "reproduce.md" in row
