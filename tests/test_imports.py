"""The shape of the project, read from the sources: which way imports point, and what may not be spelled out twice."""

import ast
import graphlib
import re

import pytest

from kvq_core.methods import methods
from scripts.architecture import GROUND
from tests.support.imports import ROOT, imports, parse, places, room, rooms

CORE = ROOT / "kvq_core"

# What each room may import; it may always import itself. A room is a folder of kvq_core or ui, or a module that lies
# loose at their top. `kernels` is kernels/kvq_kernels. Rooms of the page name what they see of the core, too:
# nothing there that computes, but for the places in which a run is asked for.
_TABLE = """
    errors:
    frozen:
    shipped:
    shape: frozen
    engines: frozen shape shipped
    settings: errors
    limits: errors settings
    logs: errors settings
    machine: errors
    record: errors frozen logs machine settings shipped spec
    codecs: errors kernels
    codebooks: errors frozen machine settings shipped
    methods: codebooks codecs engines errors frozen kernels shape
    complaints: errors
    spec: complaints errors frozen methods
    presets: complaints engines errors frozen methods shipped sizing spec
    analysis: engines errors methods record sizing spec
    models: errors kernels machine methods settings shape sizing spec
    engine: codecs errors machine methods models record spec
    training: codebooks errors kernels machine methods models settings spec
    capture: engine errors machine methods models settings spec
    sizing: engines errors frozen methods shape shipped spec
    pipeline: analysis capture codecs engine errors frozen logs machine methods models presets record settings
        sizing spec
    inspection: analysis capture engine errors frozen machine methods models presets settings shape shipped sizing
        spec
    packed: codecs engine errors frozen kernels machine methods models pipeline record shipped spec
    claims: capture codebooks codecs engine errors frozen kernels machine methods models pipeline presets record
        settings shape shipped sizing spec studies training
    studies: analysis complaints errors limits logs machine models pipeline presets record shipped spec
    servers: engine engines errors machine methods models pipeline record settings spec studies
    recommend: analysis complaints engines errors inspection machine methods models pipeline presets record settings
        shape sizing spec studies
    lm_eval: engine errors models spec
    mend: codecs engine errors machine methods models presets servers spec studies
    cli: analysis claims codebooks errors inspection machine mend methods models packed pipeline presets recommend
        record servers settings shape shipped sizing spec studies training
    __main__: cli
    __init__: errors inspection methods models packed pipeline recommend record spec studies
    ui.html: analysis claims frozen inspection machine record sizing spec
    ui.figures: analysis recommend record studies ui.html
    ui.selection: record ui.figures ui.html
    ui.words: analysis record studies ui.figures ui.html ui.selection
    ui.export: analysis errors machine presets record spec ui.figures ui.html ui.selection ui.service ui.words
    ui.service: analysis errors inspection limits logs machine mend packed pipeline record settings sizing spec
        studies training ui.html
    ui.form: claims errors methods models presets recommend record settings spec training ui.html ui.service
    ui.server: errors logs machine models packed pipeline record settings shipped spec ui.export ui.service
    ui.views: analysis engines errors methods record spec ui.figures ui.form ui.html ui.selection ui.service
        ui.words
    ui.panels: analysis claims errors frozen inspection logs machine mend methods models packed pipeline presets record
        settings spec training ui.export ui.figures ui.form ui.html ui.selection ui.service ui.views ui.words
    ui.study: errors limits logs machine models pipeline presets record settings spec studies ui.figures ui.form
        ui.html ui.panels ui.service ui.views ui.words
    ui.decide: analysis engines errors inspection limits logs machine models pipeline recommend settings sizing spec
        studies ui.figures ui.html ui.panels ui.service ui.study ui.views
    ui.api: analysis claims errors inspection methods models pipeline presets recommend record sizing spec studies
        ui.decide ui.service ui.study ui.words
    ui.verify: errors machine record servers settings ui.html ui.panels ui.service ui.study
    ui.layout: errors ui.api ui.decide ui.export ui.figures ui.form ui.html ui.panels ui.server ui.service ui.study
        ui.verify
        ui.views
    ui.__init__:
"""
ROOMS = {
    room: set(names.split())
    for room, names in (row.split(":") for row in re.split(r"\n    (?=\S)", _TABLE.rstrip())[1:])
}
# of rooms that are open to the page in part, the modules it sees
OPEN_TO_THE_PAGE = {
    "claims": {"board", "latency", "shares", "side_by_side"},
    "inspection": {"fits", "look", "report", "rules"},
    "packed": {"gpus", "lanes", "slow"},
    "pipeline": {"added", "estimate", "examples", "layer_look", "roundtrip", "solved", "timings", "why"},
    "studies": set(
        "agreement bounds cells estimate example executors intervals pairs prompts result rows sources spec "
        "stored_plan study task_suites tasks".split()
    ),
    "sizing": {"count", "fit", "reserve", "units"},
    "training": {"offer"},
    "machine": {"files", "memory", "owner", "progress"},
}
LOOSE = {"kvq_core": 12, "ui": 6, "tests": 12}  # modules that may lie outside the rooms, and test files outside theirs
SOURCES = sorted(
    [*(f for d in ("kvq_core", "kvq_explorer", "ui", "kernels") for f in (ROOT / d).rglob("*.py")), ROOT / "app.py"]
)


MODULES = sorted([*CORE.rglob("*.py"), *(ROOT / "ui").rglob("*.py")])


def test_the_table_is_what_rooms_import():
    """Imports within functions and for types alone count like all others."""
    found: dict[str, set[str]] = {}
    for file in MODULES:
        assert (own := room(file)) in ROOMS, f"{file}: {own} is new: say in this test what it may import"
        there = set(rooms(imports(file))) - {own}
        assert not (extra := there - ROOMS[own]), f"{file}: {own} may not import {sorted(extra)}"
        found.setdefault(own, set()).update(there)
    unused = {own: sorted(ROOMS[own] - there) for own, there in found.items() if ROOMS[own] - there}
    assert not unused, "nobody imports these: take them out of the table"


def test_the_page_sees_what_is_open_to_it():
    seen: dict[str, set[str]] = {name: set() for name in OPEN_TO_THE_PAGE}
    for file in (ROOT / "ui").rglob("*.py"):
        if room(file) != "ui.server":  # the server starts runs in processes of their own
            found = {name: modules for name, modules in rooms(imports(file)).items() if name in seen}
            hidden = {f"{name}.{module}" for name in found for module in found[name] - OPEN_TO_THE_PAGE[name]}
            assert not hidden, f"{file}: the page does not see {sorted(hidden)}"
            for name, modules in found.items():
                seen[name] |= modules
    assert seen == OPEN_TO_THE_PAGE, "nobody sees some of these: take them out"


def test_the_table_of_rooms_has_no_circle():
    graphlib.TopologicalSorter(ROOMS).prepare()


def test_the_table_names_the_rooms_there_are():
    there = {room(file) for file in MODULES}
    assert there == set(ROOMS)


def test_modules_import_in_no_circle():
    names = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in MODULES}

    def module(name: str) -> str | None:
        return next((n for n in (name, name.rpartition(".")[0]) if n in names), None)

    graph = {name: {module(n) for n in imports(file)} - {None, name} for name, file in names.items()}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("folder", LOOSE)
def test_few_modules_lie_outside_the_rooms(folder):
    pattern = "test_*.py" if folder == "tests" else "*.py"
    loose = [f.name for f in (ROOT / folder).glob(pattern) if not f.name.startswith("__")]
    assert len(loose) <= LOOSE[folder], sorted(loose)


@pytest.mark.parametrize(
    "file", [f for f in MODULES if f.name == "__init__.py"], ids=lambda f: str(f.relative_to(ROOT))
)
def test_every_room_says_what_lives_there(file):
    said = ast.get_docstring(parse(file)) or ""
    paper = file.parent.parent == CORE / "methods" and "arXiv" in said  # a map of the paper instead
    asks = "what lives there, what it may import, where to start reading"
    assert 2 <= len(said.splitlines()) <= (15 if paper else 5), asks
    assert paper or ("import" in said.lower() and "Start" in said), asks


@pytest.mark.parametrize("own", [own for own in ROOMS if (ROOT / places(own) / "__init__.py").is_file()])
def test_a_room_says_what_the_table_says_it_imports(own):
    """All rooms of the table but the ground that every room stands on; a room of the page names those of the page."""
    said = ast.get_docstring(parse(ROOT / places(own) / "__init__.py")) or ""
    sentence = said.partition("Imports ")[2]
    named = set(re.findall(r"\w+", re.split(r"[.;:]", sentence)[0]))
    page = own.startswith("ui.")
    known = {name.removeprefix("ui."): name for name in ROOMS if page or not name.startswith("ui.")} | {
        "kernels": "kernels"
    }
    told = {known[word] for word in named & set(known)} - {own}
    assert told <= ROOMS[own], f"{own} says that it imports {sorted(told - ROOMS[own])}, which the table does not have"
    needed = {name for name in ROOMS[own] - {*GROUND} if name.startswith("ui.") or not page}
    assert needed <= told or named & {"every", "everything", "anything"}, f"{own} does not name {sorted(needed - told)}"


def test_kernels_import_nothing_of_ours():
    for file in (ROOT / "kernels").rglob("*.py"):
        assert set(rooms(imports(file))) <= {"kernels"}, file


def test_nothing_imports_the_page_but_the_app():
    for file in SOURCES:
        if not {ROOT / "ui", ROOT / "kvq_explorer"} & set(file.parents) and file.name != "app.py":
            assert not [n for n in imports(file) if n.split(".")[0] in ("ui", "app")], file


def test_only_models_import_transformers():
    for file in SOURCES:
        names = {name.split(".")[0] for name in imports(file)}
        if CORE / "models" not in file.parents:
            assert "transformers" not in names, file


def test_figures_are_pure():
    """ui/figures turns records into plotly figures: no widgets, no running."""
    for file in (ROOT / "ui" / "figures").rglob("*.py"):
        names = imports(file)
        assert not {n for n in names if n.split(".")[0] == "gradio"}, file


def test_no_pickle_and_no_eval():
    for file in SOURCES:
        assert not {n.split(".")[0] for n in imports(file)} & {"pickle", "shelve", "joblib", "dill"}, file
        calls = {n.func.id for n in ast.walk(parse(file)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not calls & {"eval", "exec"}, file


def method_names_compared(tree: ast.AST) -> list[str]:
    """Method names a comparison, a match case or a dict key spells out."""
    names, found = set(methods()), []

    def texts(node: ast.AST) -> set[str]:
        return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found += sorted(texts(node) & names)
        elif isinstance(node, ast.match_case):
            found += sorted(texts(node.pattern) & names)
        elif isinstance(node, ast.Dict):
            found += sorted({k.value for k in node.keys if isinstance(k, ast.Constant) and k.value in names})
    return found


def test_no_branch_on_a_methods_name():
    for file in SOURCES:
        if file.is_relative_to(CORE / "methods"):
            continue  # a method's own file may know its name
        assert not method_names_compared(parse(file)), file


def test_the_branch_test_would_notice():
    for code in (
        'if m == "kivi": pass',
        'x = {"squat": 1}',
        'match m:\n  case "per_token": pass',
        'm in ("kivi", "x")',
    ):
        assert method_names_compared(ast.parse(code))


def test_only_kernels_are_laid_out_by_hand():
    by_hand = "# fmt: " + "skip"
    trees = [CORE, ROOT / "ui", ROOT / "tests", ROOT / "benchmarks", ROOT / "scripts"]
    assert not [file for tree in trees for file in tree.rglob("*.py") if by_hand in file.read_text(encoding="utf-8")]


def test_a_class_has_a_name_of_its_own():
    """Whoever looks one up finds one."""
    homes: dict[str, list[str]] = {}
    for file in MODULES:
        for node in parse(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in homes.items() if len(files) > 1}
