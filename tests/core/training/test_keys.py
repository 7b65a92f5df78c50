"""Training of codebooks of keys: stages, the error it reports, and what an interruption leaves."""

import pytest
import torch

from kvq_core.machine.progress import Progress
from kvq_core.training.checkpoints import Checkpoints
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.keys import KeyPlan, train_keys
from tests.support.codebook_samples import QUIET, samples


@pytest.mark.slow
def test_errors_fall_from_stage_to_stage_and_short_codebooks_begin_long_ones(tmp_path):
    data, fresh = samples(800, 1), samples(300, 2)
    make_plan = lambda stages: KeyPlan(4, 4, stages, EmSettings(steps=8), seed=3)  # noqa: E731
    long = train_keys(data, fresh, make_plan(3), Checkpoints(tmp_path / "long"), QUIET)
    short = train_keys(data, fresh, make_plan(2), Checkpoints(tmp_path / "short"), QUIET)
    assert long["theta"].shape == (2, 2, 2, 3, 4, 4, 2) and long["theta"].dtype == torch.float16
    assert torch.equal(long["theta"][:, :, :, :2], short["theta"])
    assert (long["held_out_error"].diff(dim=1) < 0).all() and (long["train_error"].diff(dim=1) < 0).all()


def test_reported_key_error_is_the_codecs(tmp_path):
    from kvq_core.methods.commvq.method import KeyCodec

    fresh = samples(300, 2)
    made = train_keys(samples(800, 1), fresh, KeyPlan(8, 8, 3, EmSettings(steps=8), 0), Checkpoints(tmp_path), QUIET)
    codec, keys = KeyCodec(made["theta"]), fresh.keys.float()
    delta = codec.decode(codec.encode(keys, 0)) - keys
    actual = delta.square().sum((1, 2, 3)) / keys.square().sum((1, 2, 3))
    torch.testing.assert_close(made["held_out_error"][:, -1], actual, rtol=5e-3, atol=0)


def test_an_interrupted_training_goes_on_where_it_was(tmp_path, monkeypatch):
    data, fresh = samples(400, 1), samples(200, 2)
    plan = KeyPlan(4, 8, 3, EmSettings(steps=6), seed=0)
    whole = train_keys(data, fresh, plan, Checkpoints(tmp_path / "a"), QUIET)

    def stop(at: Progress) -> None:
        if at.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_keys(data, fresh, plan, Checkpoints(tmp_path / "b"), stop)
    (tmp_path / "b" / "layer000-stage01.piece").write_bytes(b"half a file")
    calls = []
    monkeypatch.setattr("kvq_core.training.keys.train_stage", lambda *a: calls.append(1) or train_stage(*a))
    resumed = train_keys(data, fresh, plan, Checkpoints(tmp_path / "b"), QUIET)
    assert len(calls) == 3  # of six: the damaged one and the two that were missing
    for name in ("theta", "train_error", "held_out_error"):
        assert torch.equal(whole[name], resumed[name])
    saved = Checkpoints(tmp_path / "b").load("layer000-stage00")  # what it took before the interruption counts
    assert resumed["seconds"].shape == (2, 3) and resumed["seconds"][0, 0] == saved["seconds"] > 0
