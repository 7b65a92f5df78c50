"""Where the damage at a token is, and which tokens are of which kind."""

import numpy as np
import pytest
import torch

from kvq_core.analysis.token_kinds import token_kinds
from kvq_core.analysis.worst import worst_places
from tests.support.ui_record_factory import make_run


def test_the_place_is_where_attention_changed_most_else_where_scores_did():
    record, arrays = make_run(1)
    step, looked = 11, record.capture.attention_steps[2]  # 16
    arrays["lane/0/delta_mean"][7, 5, step] = 9.0
    arrays["lane/0/attention_kl"][2, 21, 3] = 4.0
    found = worst_places(record, arrays, 0)
    assert (found.layer[step], found.head[step], found.value[step]) == (7, 5, 9.0) and found.measure(step) == "score"
    assert (found.layer[looked], found.head[looked], found.value[looked]) == (21, 3, 4.0)
    assert (
        found.measure(looked) == "attention" and np.flatnonzero(found.looked).tolist() == record.capture.attention_steps
    )


def test_heads_that_read_the_first_tokens_alone_are_passed_over():
    record, arrays = make_run(1)
    arrays["lane/0/delta_mean"][7, 5, 11] = 9.0
    arrays["reference/sink_mass"][:, 7, 5] = 0.99
    found = worst_places(record, arrays, 0)
    assert (found.layer[11], found.head[11]) != (7, 5)
    arrays["reference/sink_mass"] = torch.full_like(arrays["reference/sink_mass"], 0.99)
    found = worst_places(record, arrays, 0)
    assert (found.layer[11], found.head[11]) == (7, 5), "where all are such, none is passed over"


def test_without_scores_there_is_no_place():
    record, arrays = make_run(1)
    assert worst_places(record, {name: of for name, of in arrays.items() if "delta_mean" not in name}, 0) is None


@pytest.mark.parametrize(
    ("pieces", "kind", "found"),
    [
        (["In", " 18", "07", " it", " rose"], "digits", [1, 2]),
        (["def", " f", "(", "x", "):", "\n", "    ", "return", " x"], "structure", [2, 4, 5, 6]),
        (['{"', "name", '":', ' "', "Ann", '"}'], "structure", [0, 2, 3, 5]),
        (["The", " mill", " at", " Car", "row", " Point", ".", " It", " stood"], "names", [3, 4, 5]),
        (["raise", " Value", "Error", " now"], "names", [1, 2]),
        (["She", " met", " Él", "ise", "!", " Then", " left"], "names", [2, 3]),
        ([], "names", []),
    ],
)
def test_kinds_of_tokens(pieces, kind, found):
    assert [at for at, kinds in enumerate(token_kinds(pieces)) if kind in kinds] == found
