"""What the page, the report and the command line say of a model that comes from a GGUF file."""

from kvq_core.cli.tables import describe_record
from kvq_core.record.events import Loading
from ui.export.page import page
from ui.html.cards import reference_head
from ui.html.status import event_line

NOTE = "Weights are the file's (Q4_K_M), dequantized: lanes compare caches of this file."


def test_how_the_file_held_its_weights_is_said_everywhere(sample_run):
    record, arrays = sample_run()
    environment = record.environment.model_copy(update={"quantization": "Q4_K_M: Q4_K 12, F32 9"})
    of_a_file = record.model_copy(update={"environment": environment})
    for show in (reference_head, lambda run: describe_record(run, arrays), lambda run: page(run, arrays)):
        assert NOTE.replace("'", "&#x27;") in show(of_a_file) or NOTE in show(of_a_file)
        assert "dequantized: lanes" not in show(record)


def test_a_conversion_says_how_far_it_is():
    assert "Converting the model, once: 120 of 630 million weights" in event_line(
        Loading("m", 120_000_000, 630_000_000)
    )
    assert "Loading the model" in event_line(Loading("m"))
