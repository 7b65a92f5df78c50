"""Prompts from files: every format, and each bad one in one line."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvq_core.errors import LimitError, SpecError
from kvq_core.studies.bounds import FileBounds
from kvq_core.studies.sources import PromptSource
from kvq_core.studies.spec import parse_study, read_study, study_link, study_of_link
from tests.support.study_models import LANES

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ROWS = [
    {"id": "a", "prompt": "One, and more", "group": "g"},
    {"prompt": "Two", "system": "Be short.", "continuation": "Yes."},
    {"id": "c", "messages": [{"role": "user", "content": "Three"}], "tools": TOOLS},
]


def read(tmp_path, name: str, **more: object):
    data = {"prompts": {"file": name, **more}, "lanes": LANES}
    (tmp_path / "study.json").write_text(json.dumps(data))
    return read_study(tmp_path / "study.json").prompts.read()


def write(tmp_path, name: str, rows: list[dict]) -> None:
    file = tmp_path / name
    table = pd.DataFrame(rows)
    match file.suffix:
        case ".jsonl":
            file.write_text("\n".join(map(json.dumps, rows)))
        case ".parquet":
            table.to_parquet(file)
        case ".csv":
            for name in ("messages", "tools"):
                table[name] = [json.dumps(row[name]) if name in row else "" for row in rows]
            table.to_csv(file, index=False)


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.parquet"])
def test_every_format_holds_the_same(tmp_path, name):
    write(tmp_path, name, ROWS)
    found, left = read(tmp_path, name)  # relative to the study's file
    first, second, third = found
    assert (first.id, first.prompt, first.group) == ("a", "One, and more", "g")
    assert (second.id, second.system, second.continuation) == ("2", "Be short.", "Yes.")
    assert third.messages[0].content == "Three" and third.tools[0]["function"]["name"] == "look"
    assert third.prompt == "" and not left


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    (tmp_path / "p.txt").write_text("One\n\nTwo\n")
    assert [each.prompt for each in read(tmp_path, "p.txt")[0]] == ["One", "Two"]


BROKEN = '{"prompt": "One"}\n{"prompt": \n{"promt": "x"}\n\n{"prompt": "Four"}\n'


def test_a_broken_line_is_named_and_the_rest_kept_if_asked(tmp_path):
    (tmp_path / "p.jsonl").write_text(BROKEN)
    with pytest.raises(SpecError, match=r"p\.jsonl, line 2: this is not valid JSON: .* at character 13\..*skip_broken"):
        read(tmp_path, "p.jsonl")
    found, left = read(tmp_path, "p.jsonl", skip_broken=True)
    assert [each.prompt for each in found] == ["One", "Four"]
    assert len(left) == 2 and "line 2" in left[0] and "line 3" in left[1] and "promt" in left[1]


def test_lines_of_csv_after_a_broken_one_are_kept_if_asked(tmp_path):
    (tmp_path / "p.csv").write_text('prompt,id\n"a"b,1\nTwo,2\nThree,3,4\nFour,4\n"x')
    with pytest.raises(SpecError, match=r"p\.csv, line 2: this is not valid CSV: "):
        read(tmp_path, "p.csv")
    found, left = read(tmp_path, "p.csv", skip_broken=True)
    assert [each.prompt for each in found] == ["Two", "Four"]
    assert [line.split(":")[0] for line in left] == ["p.csv, line 2", "p.csv, line 4", "p.csv, line 6"]


def test_a_prompt_of_csv_is_as_long_as_one_of_any_file(tmp_path):
    (tmp_path / "p.csv").write_text(f"prompt,id\n{'word ' * 40_000},1\n")
    [found], _ = read(tmp_path, "p.csv")
    assert len(found.prompt) == 200_000


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("p.csv", "a,b\n1,2\n", "p.csv has no column prompt or messages; it has a, b"),
        ("p.csv", "prompt,id\nx,1,2\n", "line 2: it has more cells"),
        ("p.csv", '"', "p.csv is not valid CSV: unexpected end of data"),
        ("p.csv", "id,messages\n1,[\n", "line 2: messages: this is not valid JSON"),
        ("p.parquet", "no parquet", "p.parquet is not valid Parquet"),
        ("p.txt", "\n", "there are none"),
        ("p.jsonl", "[1]", "a prompt is an object"),
        ("p.jsonl", '{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "the id 'x' is given to prompts 1, 2"),
        ("p.jsonl", '{"prompt": "a", "answer": 1}', "line 1: answer and verifier go together"),
        ("p.md", "x", "files end in .jsonl, .json, .csv, .parquet, .txt"),
        ("p.txt", b"\xff\xfa", "not text in UTF-8"),
        ("p.json", "[1", "p.json, line 1: this is not valid JSON"),
    ],
)
def test_bad_files_are_refused_in_a_line(tmp_path, name, text, why):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as told:
        read(tmp_path, name)
    assert why in str(told.value)


TINY = FileBounds(rows=60, bytes=32_000_000)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "parquet"])
def test_a_visitor_s_file_has_so_many_rows_bytes_and_columns(tmp_path, kind):
    file = tmp_path / f"p.{kind}"

    def read(rows: list[dict], bounds: FileBounds = TINY):
        if kind == "txt":
            file.write_text("\n".join(row["prompt"] for row in rows))
        else:
            write(tmp_path, file.name, rows)
        return PromptSource(file=str(file)).read(bounds)[0]

    rows = [{"prompt": f"One {at}"} for at in range(61)]
    assert len(read(rows[:60])) == 60 == len(read(rows[:60], FileBounds(None, 60_000)))
    with pytest.raises(LimitError, match="has more than 60 prompts"):
        read(rows)
    with pytest.raises(LimitError, match="unfolds to more than 60,000 bytes"):
        read(rows, FileBounds(None, 60_000))
    assert len(read([{"prompt": "x" * 10**6}])) == 1
    with pytest.raises(LimitError, match="has a text of 1,000,001 characters; at most 1,000,000"):
        read([{"prompt": "x" * (10**6 + 1)}])
    if kind in ("csv", "parquet"):
        with pytest.raises(SpecError, match=r"has 6\d columns; at most 64 are read"):
            read([{"prompt": "a", **{f"c{at}": "b" for at in range(64)}}])


@pytest.mark.parametrize("rows", [61, 55])
def test_a_small_parquet_file_unfolds_no_further_than_it_may(tmp_path, rows):
    """Its metadata is of a text of a million letters, once."""
    import pyarrow as pa

    pq.write_table(pa.table({"prompt": ["x" * 10**6] * rows}), tmp_path / "p.parquet", compression="zstd")
    assert (tmp_path / "p.parquet").stat().st_size < 600
    source = PromptSource(file=str(tmp_path / "p.parquet"))
    with pytest.raises(
        LimitError, match="has more than 60 prompts" if rows > 60 else "unfolds to more than 32,000,000"
    ):
        source.read(TINY)


def test_a_parquet_file_is_unfolded_in_so_much_memory(tmp_path, monkeypatch):
    import pyarrow as pa

    # 2 GB of texts: more than what a process that ran other tests may hold free, which its fork has beside its room
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 10**6]))
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "p.parquet", store_schema=False)
    monkeypatch.setattr("kvq_core.studies.bounds.ROOM", 8 * 1024**2)
    with pytest.raises(LimitError, match=r"p\.parquet takes more than 10 s or 0.0078125 GiB to unfold"):
        PromptSource(file=str(tmp_path / "p.parquet")).read(FileBounds(None, 10**10))


@pytest.mark.parametrize("at", [0, 4, 40, -30, -8])
@pytest.mark.parametrize("bounds", [TINY, None])
def test_a_damaged_parquet_file_is_told_by_its_name_alone(tmp_path, at, bounds):
    write(tmp_path, "p.parquet", ROWS)
    raw = bytearray((tmp_path / "p.parquet").read_bytes())
    raw[at : (at + 20) or None] = b"\xff" * 20
    (tmp_path / "p.parquet").write_bytes(raw)
    with pytest.raises(SpecError) as told:
        PromptSource(file=str(tmp_path / "p.parquet")).read(bounds)
    assert str(told.value).startswith("p.parquet") and str(tmp_path) not in str(told.value)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(SpecError, match="Cannot read .*nowhere.jsonl: No such file"):
        read(tmp_path, "nowhere.jsonl")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompts": {}}, "none is given; give one of file, texts, rows, suite"),
        ({"prompts": {"texts": ["a"], "file": "b.txt"}}, "file and texts are given"),
        ({"prompts": {"texts": ["a"], "n": 2, "depth": 1}}, "depth"),
        ({"prompt": "x"}, "prompt is given by each prompt of a study"),
        ({"lanes": []}, "A study compares lanes"),
        ({"models": ["a", "a"]}, "'a' is given twice"),
        ({"lanes": [{"method": "kivvi"}]}, "lane 1"),
        ({"max_new_token": 3}, "Unknown field 'max_new_token'; allowed: models, prompts, model, revision, reference,"),
        ({"model": "a", "models": ["b"]}, "model and models"),
    ],
)
def test_an_impossible_study_is_refused_in_a_line(changes, why):
    with pytest.raises(SpecError) as told:
        parse_study({"prompts": {"texts": ["a"]}, "lanes": LANES, **changes})
    assert why in str(told.value)


def test_a_study_has_small_records_and_both_floors_unless_it_says_otherwise():
    plain = parse_study({"prompts": {"texts": ["a"]}, "bundle": {"name": "grid", "family": "vllm"}}).comparison
    assert (plain.floors, plain.free_text, plain.capture.detail) == ("both", False, "off") and len(plain.lanes) > 2
    asked = parse_study({"prompts": {"texts": ["a"]}, "lanes": LANES, "floors": "storage", "capture": {}})
    assert (asked.comparison.floors, asked.comparison.capture.detail) == ("storage", "normal")


def test_a_link_holds_the_study_with_its_prompts(tmp_path):
    write(tmp_path, "p.jsonl", ROWS)
    spec = parse_study({"prompts": {"file": str(tmp_path / "p.jsonl")}, "lanes": LANES, "max_new_tokens": 5})
    found = study_of_link(study_link(spec))
    assert found.prompts.read() == spec.prompts.read()
    assert found.comparison.canonical() == spec.comparison.canonical()


def test_columns_are_taken_as_people_write_them(tmp_path):
    """A byte order mark, ids that are numbers, answers of several parts in CSV, tools beside a prompt."""
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    row = json.dumps({"prompt": "Who keeps the mill?", "id": 7, "tools": [tool]})
    (tmp_path / "p.jsonl").write_text(row, encoding="utf-8-sig")
    ((asked,), _) = read(tmp_path, "p.jsonl")
    assert asked.id == "7" and asked.tools[0]["function"]["name"] == "look_up"
    table = 'prompt,answer,verifier\nName two.,"[""tide"", ""mill""]",all_of\nName one.,mill,contains\n'
    (tmp_path / "p.csv").write_text(table)
    assert [prompt.answer for prompt in read(tmp_path, "p.csv")[0]] == [["tide", "mill"], "mill"]


def test_a_suite_of_long_answers_is_given_the_room_it_asks_for():
    given = {"lanes": [{"method": "per_token"}]}
    lengths = [
        parse_study({**given, "prompts": {"suite": suite, "n": 2}, **more}).comparison.max_new_tokens
        for suite, more in (("long", {}), ("long", {"max_new_tokens": 90}), ("needle", {}))
    ]
    assert lengths == [1024, 90, 64]


def test_an_id_that_is_a_number_is_nobody_elses(tmp_path):
    (tmp_path / "p.jsonl").write_text(
        '{"id": 2, "prompt": "Hi"}\n{"prompt": "Ho"}\n{"prompt": "He"}\n{"id": "4", "prompt": "Ha"}'
    )
    assert [each.id for each in read(tmp_path, "p.jsonl")[0]] == ["2", "5", "3", "4"]


def test_an_answer_of_csv_that_begins_like_a_list_and_is_none_is_text(tmp_path):
    (tmp_path / "p.csv").write_text(
        "prompt,answer,verifier\na,[citation needed],contains\nb,{x,contains\nc,[1],contains\n"
    )
    assert [each.answer for each in read(tmp_path, "p.csv")[0]] == ["[citation needed]", "{x", [1]]


@pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.csv", "p.txt"])
def test_files_of_powershell_are_read(tmp_path, name):
    text = {"p.csv": "prompt\nWhat?\n", "p.txt": "What?\n", "p.json": '[{"prompt": "What?"}]'}
    (tmp_path / name).write_bytes(text.get(name, '{"prompt": "What?"}\r\n').encode("utf-16"))
    assert [each.prompt for each in read(tmp_path, name)[0]] == ["What?"]
