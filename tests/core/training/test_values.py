"""Training of codebooks of values."""

import pytest
import torch

from kvq_core.codebooks.encoder import from_stored, to_stored
from kvq_core.machine.progress import Progress
from kvq_core.training.checkpoints import Checkpoints
from kvq_core.training.values import ValuePlan, error, start, train_layer, train_values
from tests.support.codebook_samples import QUIET, samples


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2])
def test_value_training_improves_on_its_start(bits):
    v, fresh = (samples(n, s).values[0].float().transpose(0, 1).flatten(1)[None] for n, s in ((1500, 1), (500, 2)))
    before = error(start(v, bits, torch.Generator().manual_seed(0)), fresh)
    encoder = train_layer(v, ValuePlan(bits, steps=150, seed=0), seed=0)
    after = error(encoder, fresh)
    assert after < 0.8 * before and after < 0.5
    kept = from_stored(to_stored(encoder))
    assert error(kept, fresh) < 1.1 * after  # int8 weights
    assert to_stored(encoder)["codebook"].dtype == torch.float16
    again = train_layer(v, ValuePlan(bits, steps=150, seed=0), seed=0)
    assert torch.equal(encoder.codebook, again.codebook)


@pytest.mark.parametrize("steps", [1, 2, 10, 11])
def test_the_fewest_steps_train_too(steps):
    v = samples(100, 1).values[0].float().transpose(0, 1).flatten(1)[None]
    assert error(train_layer(v, ValuePlan(1, steps=steps, seed=0), seed=0), v).isfinite()


def test_value_training_resumes_and_reports_the_codecs_error(tmp_path, monkeypatch):
    from kvq_core.methods.commvq.method import ValueCodec

    data, fresh, plan = samples(400, 1), samples(200, 2), ValuePlan(1, steps=30, seed=0)

    def stop(at: Progress) -> None:
        if at.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_values(data, fresh, plan, Checkpoints(tmp_path / "b"), stop)
    resumed = train_values(data, fresh, plan, Checkpoints(tmp_path / "b"), QUIET)
    whole = train_values(data, fresh, plan, Checkpoints(tmp_path / "a"), QUIET)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole if name != "seconds")
    codec, values = ValueCodec(from_stored(whole), heads=2), fresh.values.float()
    delta = codec.decode(codec.encode(values, 0)) - values
    actual = delta.square().sum((1, 2, 3)) / values.square().sum((1, 2, 3))
    torch.testing.assert_close(whole["held_out_error"], actual, rtol=1e-3, atol=0)
