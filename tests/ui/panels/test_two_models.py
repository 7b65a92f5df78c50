"""What an empty page says first: formats on two models, from the runs that ship."""

import re

import pytest

from kvq_core.analysis.verdict import Figures, tier
from kvq_core.pipeline.examples import packaged_store
from kvq_core.presets import presets
from tests.support.ui_record_factory import make_run
from ui.panels.tour import shipped_ids
from ui.panels.two_models import RUNS, FormatRow, Ran, changed_bytes, format_rows, headline, two_models_html

NAMES = ["A", "B"]


def row(here: float, there: float, centred: tuple[float, float] | None = None) -> FormatRow:
    def lane(kld: float) -> Ran:
        found = make_run(1)[0].lanes[0]
        own = found.model_copy(update={"metrics": found.metrics.model_copy(update={"kld_mean": kld})})
        return Ran(own, tier(Figures(kld, kld, kld, 0, 100)))

    return FormatRow("q", (lane(here), lane(there)), tuple(map(lane, centred)) if centred else ())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row(0.03, 4.0, (0.02, 0.005))],
            "q keeps the answer on A and ruins it on B; there, subtracting the mean key repairs it.",
        ),
        ([row(0.03, 4.0, (0.02, 2.0))], "q keeps the answer on A and ruins it on B."),
        ([row(0.03, 4.0)], "q keeps the answer on A and ruins it on B."),
        ([row(0.3, 4.0, (0.2, 0.005))], "q has a KLD of 0.30 on A and of 4.0 on B."),
        ([row(0.03, 0.5, (0.02, 0.005))], "q has a KLD of 0.030 on A and of 0.50 on B."),
    ],
)
def test_the_headline_claims_no_more_than_was_measured(rows, said):
    assert headline(rows, NAMES) == said


def test_flips_can_keep_a_lane_from_being_kept():
    """The one rule of tiers: 20 of 100 positions flip, whatever the mean KLD."""
    lane = row(0.03, 4.0).plain[0].lane
    placed = [tier(Figures(0.03, 0.03, 0.03, flips, 100)) for flips in (0, 20)]
    assert [Ran(lane, each).kept for each in placed] == [True, False]


def test_the_runs_that_ship_have_deployed_formats_first_on_both_models():
    runs = [packaged_store().load(shipped_ids()[name]) for name in RUNS]
    rows, records = format_rows(runs), [record for record, _ in runs]
    titles = [record.environment.model_title.split("-")[0] for record in records]
    assert titles == ["SmolLM2", "Qwen2.5", "qwen2.5"] and records[2].environment.reference is not None
    assert all(record.results_version == records[0].results_version for record in records)
    assert [found.label.split()[0] for found in rows][:3] == ["llama.cpp"] * 3 and sum(
        bool(r.centred) for r in rows
    ) == 2
    one = next(found for found in rows if found.label == "llama.cpp q4_0")
    assert one.plain[0].kept and "Biscuit" in one.plain[0].lane.text
    assert one.plain[1].ruined and "Biscuit" not in one.plain[1].lane.text
    assert one.centred[1].kept and "Biscuit" in one.centred[1].lane.text
    assert one.plain[2].kept and "Biscuit" in one.plain[2].lane.text
    assert changed_bytes(records[2]) == "794 bytes" and changed_bytes(records[1]) is None


def test_the_card_leads_to_both_runs_and_to_the_five_papers_and_never_says_what_to_use():
    html = two_models_html()
    first, second, mended = (shipped_ids()[name] for name in RUNS)
    assert f'?run={mended}"' in html
    assert f"?run={first}&amp;vs={second}" in html and f"?run={shipped_ids()['five-ideas']}" in html
    assert html.count('class="as-it-is"') == html.count('class="if-subtracted">') - html.count(
        'if-subtracted">as it is'
    )
    assert 'id="subtract-mean"' in html and "repairs it" in html
    assert not re.search(r"-ctk|kv-cache-dtype|\bbest\b|\buse\b", html)


@pytest.mark.parametrize(
    ("mended", "said"), [(0.01, "changing 794 bytes of the model's file repairs it."), (0.5, "B.")]
)
def test_a_mended_file_is_said_to_repair_only_what_it_does(mended: float, said: str):
    found = row(0.01, 2.0)
    found = FormatRow("q", (*found.plain, row(mended, 1.0).plain[0]), ())
    assert headline([found], NAMES, "794 bytes").endswith(said)


def test_what_is_said_of_the_mended_keys_is_what_their_run_says():
    """In the preset's words and in the tour's last step."""
    plain, mended = (packaged_store().load(shipped_ids()[name])[0] for name in ("qwen-keys", "qwen-keys-mended"))
    assert mended.environment.reference is not None and changed_bytes(mended) == "794 bytes"
    lost = [record.lanes[0].metrics.kld_mean for record in (mended, plain)]
    said = next(words for words in presets()["qwen-keys"].look_at if words.startswith("Mended"))
    assert f"KLD of {lost[0]:.2g} in place of {lost[1]:.2g}" in said and "794 of its bytes" in said
    assert lost[0] < lost[1] / 5, "so the tour may say that four bits are enough"
