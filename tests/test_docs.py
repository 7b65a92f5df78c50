"""README.md, docs/ and the project's other papers: what they name exists, what they quote was measured, what they show
runs."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PIL import Image

from benchmarks import by_table
from benchmarks.by_format import is_format, of_family
from benchmarks.by_run import addresses, first_links_part
from benchmarks.readme import PART, PARTS, documents, rewritten
from kvq_core.cli.main import _parser
from kvq_core.methods import methods
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.presets import preset, presets
from scripts.architecture import PICTURE, draw

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*documents(), ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
COMMAND = re.compile(r"python -m kvq_core (.+)")
FENCE = re.compile(r"```.*?```", re.S)


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme() -> str:
    return read("README.md")


@pytest.mark.parametrize("file", documents(), ids=lambda f: f.name)
def test_generated_parts_are_what_the_script_writes(file):
    assert rewritten(read(file)) == read(file), "run: make readme"


def test_the_reference_tables_picture_is_the_one_of_its_figures():
    """None while none are stored."""
    there = by_table.PICTURE.read_text(encoding="utf-8") if by_table.PICTURE.is_file() else None
    assert there == by_table.drawn(), "run: make readme"


def test_every_generated_part_has_its_one_place():
    found = [match[2] for file in documents() for match in PART.finditer(read(file))]
    assert sorted(found) == sorted(PARTS)


def test_the_script_replaces_nothing_but_its_parts():
    text = "a\n<!-- presets -->\nold\n<!-- /presets -->\nb\n<!-- mine -->\nkept\n<!-- /mine -->\n"
    new = rewritten(text)
    assert new.startswith("a\n<!-- presets -->\n| Preset") and "old" not in new
    assert new.endswith("<!-- /presets -->\nb\n<!-- mine -->\nkept\n<!-- /mine -->\n")


def anchors(text: str) -> set[str]:
    """The anchors GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_and_anchors_resolve(name):
    page = ROOT / name
    for target, anchor in LINK.findall(FENCE.sub("", read(name))):
        file = page.parent / target if target else page
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{name} links to {target}#{anchor}"


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of every command of ours in a page's code, in blocks and between backticks."""
    for code in (*FENCE.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))):
        for found in COMMAND.findall(code):
            yield shlex.split(found, comments=True)


@pytest.mark.parametrize("name", NAMES)
def test_commands_parse_and_name_what_there_is(name):
    names = {command.split()[0] for command, _ in subcommands(_parser())}
    for arguments in commands(read(name)):
        if len(arguments) == 1 and arguments[0] in names | {"..."}:  # speaks of a command, or of any
            continue
        parsed = _parser().parse_args(arguments)  # a mistake raises SpecError
        if chosen := getattr(parsed, "preset", None):
            preset(chosen)


def subcommands(parser) -> Iterator[tuple[str, set[str]]]:
    """Every command with the options it takes."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, inner in action.choices.items():
                nested = list(subcommands(inner))
                yield from ((f"{name} {rest}", options) for rest, options in nested)
                if not nested:
                    options = {option for a in inner._actions for option in a.option_strings if option.startswith("--")}
                    yield name, options - {"--help", "--json"}


def test_the_commands_page_shows_every_command_and_option():
    shown = [" ".join(arguments) for arguments in commands(read("docs/cli.md"))]
    for name, options in subcommands(_parser()):
        own = [line for line in shown if line.startswith(name)]
        assert own, f"docs/cli.md does not show the command {name}"
        assert not options - set(" ".join(own).split()), f"docs/cli.md does not show all options of {name}"


@pytest.mark.parametrize("name", NAMES)
def test_links_to_the_page_open_something(name):
    text = read(name)
    for chosen in re.findall(r"\?preset=([\w-]+)", text):
        preset(chosen)
    for run in re.findall(r"127\.0\.0\.1:7860/\?run=(\w+)", text):
        assert packaged_store().exists(run), (
            f"{run} does not ship; presets/runs: {[r.id for r in packaged_store().list()]}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_runs_that_are_named_ship(name):
    """Every id in a document that is not a model's, whatever it stands in; one is made up, to stand for any."""
    named = set(re.findall(r"(?<!gguf:)\b[0-9a-f]{16}\b", read(name))) - {"0123456789abcdef"}
    assert named <= {run.id for run in packaged_store().list()}


@pytest.mark.parametrize("name", ["README.md", "docs/inspect.md"])
def test_the_pictures_show_the_runs_under_them(name):
    (shown,) = re.findall(r"!\[.+?\]\((.+?)\)\s+\*Part of \[run (\w+)\]", read(name))
    picture, run = (ROOT / name).parent / shown[0], shown[1]
    assert read(name).count("![") == 1
    assert Image.open(picture).text["run"] == run, "run: make picture"
    assert picture.stat().st_size < 400_000


def test_the_readme_is_short_and_its_links_need_no_app(readme):
    """The Space's front matter apart. Addresses of the project itself are those that pyproject.toml names."""
    assert len(readme.split("---\n", 2)[2].encode()) <= 8192
    leads = set(re.findall(r"\]\((https?://[^)]+)\)", readme))
    papers = {cls.paper for cls in methods().values() if cls.paper}
    own = {each for each in leads for known in addresses().values() if each.startswith(known)}
    assert leads - papers - own == {"https://docs.astral.sh/uv/"}
    assert not re.search(r"\]\([^)]*(127\.0\.0\.1|localhost)", readme)


def test_the_published_pages_and_the_space_are_linked_where_their_addresses_are_set(monkeypatch):
    told = {"Site": "https://example.org/kvq/", "Space": "https://example.org/space"}
    monkeypatch.setattr("benchmarks.by_run.addresses", lambda: told)
    first, run = first_links_part(), example_ids()["five-ideas"]
    assert "](https://example.org/kvq/index.html)" in first and f"](https://example.org/kvq/{run}.html)" in first
    assert "[Open in Spaces](https://example.org/space)" in first
    monkeypatch.setattr("benchmarks.by_run.addresses", dict)
    assert "](docs/site/index.html)" in first_links_part() and "Spaces" not in first_links_part()


def test_the_workflow_publishes_the_site_and_does_nothing_else():
    told = yaml.safe_load(read(".github/workflows/pages.yml"))
    (job,) = told["jobs"].values()
    assert all(each["uses"].startswith("actions/") and "run" not in each for each in job["steps"])
    assert [each["with"] for each in job["steps"] if "with" in each] == [{"path": "docs/site"}]
    assert told["permissions"] == {"contents": "read", "pages": "write", "id-token": "write"}
    assert (ROOT / "docs/site/index.html").is_file()


def variables_read() -> set[str]:
    """Names of our environment variables among the strings of the sources."""
    sources = [ROOT / "app.py", *(file for folder in ("kvq_core", "ui") for file in (ROOT / folder).rglob("*.py"))]
    texts = (
        node.value
        for file in sources
        for node in ast.walk(ast.parse(read(file)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if re.fullmatch("KVQ_[A-Z_]+", text)}


@pytest.mark.slow
def test_documents_name_the_environment_variables_that_are_read_and_no_others():
    named = {variable for name in NAMES for variable in re.findall(r"\bKVQ_[A-Z_]+", read(name))}
    of_tests = set(re.findall(r"KVQ_[A-Z_]+", read("tests/conftest.py")))
    assert not named - variables_read() - of_tests, "named, but read nowhere"
    assert not variables_read() - named, "read, but documented nowhere"


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/methods.md", "AGENTS.md", "CONTRIBUTING.md"])
def test_paths_in_the_documents_of_the_code_exist(name):
    """``<name>`` in one stands for any; one file is the reader's own."""
    named = re.findall(r"`((?:kvq_core|ui|kernels|tests|scripts|presets|benchmarks)/[\w/<>]*(?:\.\w+)?)`", read(name))
    named = {*named} - {"kvq_core/methods/centred.py"}
    assert named and [path for path in named if not list(ROOT.glob(re.sub(r"<\w+>", "*", path)))] == []


def test_every_room_and_loose_module_has_its_row_where_things_are_told():
    told = read("CONTRIBUTING.md").partition("| Rooms | What they hold |")[2].partition("\n\n")[0]
    named = {each.rpartition("/")[2] for each in re.findall(r"`([\w/]+)(?:\.py)?`", told)}
    there = {
        f
        for top in ("kvq_core", "ui")
        for f in (ROOT / top).iterdir()
        if f.suffix == ".py" or (f / "__init__.py").is_file()
    }
    assert {f.stem for f in there if not f.stem.startswith("__")} <= named


@pytest.mark.slow
def test_the_picture_of_the_rooms_is_what_the_imports_say():
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run: python scripts/architecture.py"


def test_the_first_screen_says_what_it_is_and_how_to_start(readme):
    after = readme.split("---", 2)[2].strip().splitlines()
    assert after[0] == "# KVQ Explorer"
    first = "\n".join(after[:16])
    assert "make run" in first and "make test" in first and "![" in first


def test_there_are_five_things_to_try():
    section = read("docs/page.md").split("## Five things to try")[1].split("\n## ")[0]
    items = re.findall(r"^\d\. .+(?:\n   .+)*", section, re.M)
    assert len(items) == 5
    assert all("http://127.0.0.1:7860/?" in item or "python -m kvq_core" in item for item in items)


@pytest.mark.parametrize("name", methods())
def test_every_method_is_named_and_has_a_row_with_its_paper_and_figures(readme, name):
    format, table = is_format(methods()[name]), read("docs/methods.md")
    assert methods()[name].title in readme.split("## Methods")[1].split("\n## ")[0]
    if of_family(name, methods()[name]):
        check_row(table, name, "not measured")
    else:
        assert f"| `{name}` " not in table
    if format:  # the second model takes hours
        check_row(read("docs/formats.md"), name, "| not measured;")


def check_row(text, name, lacking):
    rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` ")]
    assert len(rows) == 1, f"the tables of methods have {len(rows)} rows for {name}; run: make readme"
    assert (methods()[name].paper or "") in rows[0]
    assert lacking not in rows[0], "run: python benchmarks/methods.py && make readme"


@pytest.mark.parametrize("name", presets())
def test_every_preset_has_its_question(name):
    assert f"[`{name}`](http://127.0.0.1:7860/?preset={name}) | {presets()[name].question} |" in read("docs/presets.md")


def test_python_in_the_documents_compiles_and_names_what_there_is():
    import kvq_core

    for name in NAMES:
        for block in re.findall(r"```python\n(.*?)```", read(name), re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kvq_core":
                    assert hasattr(kvq_core, node.attr), f"{name}: kvq_core.{node.attr}"


def test_the_citation_names_every_paper_of_the_claims():
    cited = yaml.safe_load(read("CITATION.cff"))
    assert cited["cff-version"] == "1.2.0" and {"title", "message", "authors", "license"} <= set(cited)
    assert f'version = "{cited["version"]}"' in read("pyproject.toml")
    assert all({"type", "title", "authors", "url", "year"} <= set(reference) for reference in cited["references"])
    papers = {
        re.search(r'^arxiv = "(.+)"', file.read_text(), re.M)[1]: re.search(r'^title = "(.+)"', file.read_text(), re.M)[
            1
        ]
        for file in (ROOT / "presets" / "claims").glob("*.toml")
        if file.stem != "setting"
    }
    found = {r["url"].rsplit("/", 1)[1]: r["title"].split(":")[0] for r in cited["references"]}
    assert found == papers and len(papers) == 5


def test_the_licence_is_whole():
    text = read("LICENSE")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert all(f"\n   {section}. " in text for section in range(1, 10)) and "END OF TERMS AND CONDITIONS" in text
