"""What a decision rests on, below it: the map of layers and the longest contexts that fit."""

import pytest

from kvq_core.recommend.decision import Decision, DecisionRequest
from kvq_core.recommend.policies import Grounds, LaneFit, LayerSigns
from tests.core.recommend.test_advice import asked, noisy, option, rows
from tests.core.recommend.test_decision import scored
from ui.decide.evidence import fits_html, layers_html


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "said"),
    [(None, "Green: the 8,192 that were asked for fit."), (9, "Green: as many as the model has fit, of the 8,192")],
)
def test_green_is_what_was_asked_for_or_all_that_the_model_has(own: int | None, said: str):
    found = asked([*rows("small", noisy(0.002)), *rows("large", noisy(1e-4))], [option("small"), option("large")])
    grounds = Grounds(fits=(LaneFit(label="small", contexts={16: 9}),), own_context=own)
    page = fits_html(Decision(asked=DecisionRequest(), advice=found, grounds=grounds))
    assert said in page and ('"fit enough"' in page) is (own is not None)


def test_signs_stand_under_the_map_and_risk_is_marked():
    none = {"key_bias": None, "key_norm_gain": None, "score_error": 0.5}
    signs = tuple(LayerSigns(layer=n, key_outliers=float(n), at_risk=n == 2, **none) for n in range(6))
    page = layers_html(Grounds(scores=scored(), scored=6, signs=signs))
    assert page.count('class="bar"') == 12 and page.count("▲") == 1 and "largest key channel" in page
    assert "rank correlation over layers: largest key channel with keys in q4_0 +1.00" in page
    assert "norm of the key bias" not in page, "what no layer has is no row"
