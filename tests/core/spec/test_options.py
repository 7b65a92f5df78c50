"""An option of a lane, and a method, are declared once: put into a copy of the project, both are wherever one looks."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from kvq_core.presets import presets
from kvq_core.spec import LANE_OPTIONS, READ_OPTIONS, LaneOptions, RuleOptions
from tests.support.own_methods import example

ROOT = Path(__file__).parents[3]
OPTION = re.search(r"<!-- option -->\n```python\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)
LOOK = """
import json
import kvq_core  # the copy's, before anything looks for the project's own
from benchmarks.readme import fields_part
from kvq_core.analysis.deploy import whole_lane
from kvq_core.cli.tables import list_methods
from kvq_core.spec.links import decode, encode
from kvq_core.methods.describe import describe_methods
from kvq_core.pipeline.lanes import rule_record
from kvq_core.presets import presets
from kvq_core.record.fields import LaneRecord
from kvq_core.spec import parse_spec
from kvq_core.record.store import read_run
from pathlib import Path
from typing import get_args
from ui.api.schemas import LaneSpec, RunRecord
from ui.form.draft import draft_json, read_draft
from ui.form.editor import apply_edits, editor
from ui.form.lanes import add_lane, describe_lane, from_spec, to_spec
from ui.form.lanes_panel import place_editor
from ui.form.values import FIELDS, from_comparison
from ui.panels.differs import _titled

form, said = apply_edits(add_lane([]), 1, {"method": "one_bit", "every_nth": 3.0, "knobs.window": 8})
spec = parse_spec({"prompt": "Hi", "lanes": to_spec(form)})
(lane,) = spec.lanes
values, _, rest = from_comparison(spec)
draft = {"version": 1, "values": dict(zip(FIELDS, values, strict=True)), **json.loads(draft_json(form, rest))}
told = rule_record(lane.rule).model_dump(mode="json")
stored, _ = read_run(next(Path("presets/runs").iterdir()))
ways, refusals = whole_lane(LaneRecord(label="L", status="done", rules=[], **{
    name: value for name, value in told.items() if name != "tokens"} | {"method": "q8_0", "knobs": {}}), ())
print(json.dumps({
    "said": said,
    "wrong": describe_lane({**form[0], "every_nth": 65})[1],
    "editor": editor(form, place_editor(1)),
    "title": _titled("every_nth"),
    "kept": read_draft(json.dumps(draft))[1] == form,
    "shown": from_spec(spec.lanes)[0]["every_nth"],
    "link": decode(encode(spec)) == spec,
    "canonical": spec.changed()["lanes"][0],
    "listing": list_methods(),
    "fields": fields_part(),
    "methods": [found["name"] for found in describe_methods()],
    "record": told,
    "old": [stored.lanes[0].every_nth, stored.lanes[0].every_rule[0].every_nth],
    "engines": [len(ways), sorted({refused.reason for refused in refusals})],
    "api": [
        "every_nth" in known.__annotations__ for known in (LaneSpec, *get_args(RunRecord.__annotations__["lanes"]))
    ],
    "presets": [found.spec.canonical() for found in presets().values()],
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a copy of the project says that has one option and one method more."""
    copy = tmp_path_factory.mktemp("more")
    shutil.copytree(ROOT / "kvq_core", copy / "kvq_core", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("kernels", "presets", "ui", "benchmarks", "docs", "README.md", "pyproject.toml"):
        (copy / name).symlink_to(ROOT / name)
    options = copy / "kvq_core/spec/options.py"
    before, first, after = options.read_text().partition("    sink_tokens: int")
    assert OPTION is not None and first
    options.write_text(before + indent(OPTION[1], "    ") + first + after)
    (copy / "kvq_core/methods/one_bit.py").write_text(example("one_bit.py"))
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_form_shows_them_and_keeps_what_is_typed(found):
    assert found["said"] is None and found["kept"] and found["link"] and found["shown"] == 3
    control = found["editor"].partition('data-place="every_nth"')[2].partition("</label>")[0]
    assert 'value="3"' in control and "Of its layers it quantizes every n-th" in control and "1 to 64." in control
    assert 'data-place="knobs.window"' in found["editor"] and 'data-method="one_bit"' in found["editor"]
    assert "every_nth = 65" in found["wrong"] and found["title"] == "Every n-th layer"


@pytest.mark.slow
def test_the_command_line_and_the_documents_list_them(found):
    option = re.search(r"^    every_nth .*$", found["listing"], re.M)[0]
    assert "integer from 1 to 64: Of its layers" in option
    assert "one_bit - One bit" in found["listing"] and "one_bit" in found["methods"]
    assert found["fields"].count("`lanes[].every_nth` | `1` | Of its layers it quantizes every n-th") == 1
    assert found["api"] == [True, True]


@pytest.mark.slow
def test_the_record_has_them_and_old_runs_have_the_default(found):
    assert found["record"]["every_nth"] == 3 and found["record"]["knobs"] == {"window": 8}
    assert found["old"] == [1, 1]


@pytest.mark.slow
def test_no_engine_is_told_what_it_has_no_flag_for(found):
    assert found["engines"] == [0, ["every_nth = 3 cannot be asked for there"]]


@pytest.mark.slow
def test_ids_and_links_stay(found):
    asked = {"label": "One bit", "method": "one_bit", "knobs": {"window": 8}, "every_nth": 3}
    assert found["canonical"] == asked
    assert found["presets"] == [each.spec.canonical() for each in presets().values()]


@pytest.mark.parametrize("declared", [RuleOptions, LaneOptions])
def test_every_option_says_what_it_is(declared):
    assert all(field.title and field.description for field in declared.model_fields.values())
    assert {*LANE_OPTIONS, *READ_OPTIONS, "label"} == {*RuleOptions.model_fields, *LaneOptions.model_fields}
