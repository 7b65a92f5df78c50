"""What this project uses of Gradio though Gradio does not document it: an upgrade that takes it away fails by name.

docs/architecture.md tells why each is needed.
"""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import gradio as gr
import pytest

ROOT = Path(__file__).resolve().parents[3]

# what is called or overridden, by its place in Gradio: the parameters relied on, and where that is
_CALL = ["self", "block_fn", "processed_input", "iterator", "requests", "event_id"]
CALLED = {
    "gradio.blocks:Blocks.preprocess_data": (["self", "block_fn", "inputs", "state"], "ui/server/gradio_arguments.py"),
    "gradio.blocks:Blocks.call_function": (_CALL, "ui/server/gradio_arguments.py"),
    "gradio.blocks:BlocksConfig.config_for_block": (["_id", "rendered_ids", "block"], "ui/server/gradio_sessions.py"),
    "gradio.state_holder:SessionState.__init__": (["self", "blocks"], "ui/server/gradio_sessions.py"),
    "gradio.state_holder:StateHolder.set_blocks": (["self", "blocks"], "ui/server/gradio_sessions.py"),
    "gradio.state_holder:StateHolder.__getitem__": (["self", "session_id"], "ui/server/gradio_sessions.py"),
    "gradio.state_holder:StateHolder.delete_all_expired_state": (["self"], "ui/server/gradio_sessions.py"),
    "gradio.utils:LRUCache.__init__": (["self", "max_size"], "ui/server/gradio_answers.py"),
    "gradio.utils:get_upload_folder": ([], "ui/server/guard.py"),
    "gradio.route_utils:get_request_origin": (["request", "route_path"], "ui/service/address.py"),
    "gradio.mcp:GradioMCPServer.postprocess_output_data": (["self", "data", "root_url"], "ui/api/mcp.py"),
}
# what is read or set of a page that is built, by the path to it: its kind, and where that is
HELD = {
    "_id": (int, "ui/server/gradio_arguments.py"),
    "_queue.event_ids_to_events": (dict, "ui/server/gradio_arguments.py"),
    "_queue.pending_messages_per_session": ("gradio.utils:LRUCache", "ui/server/gradio_sessions.py"),
    "default_config.blocks": (dict, "ui/server/gradio_sessions.py"),
    "default_config.fns": (dict, "ui/server/gradio_sessions.py"),
    "fns": (dict, "ui/server/gradio_sessions.py"),
    "mcp_server_obj": (type(None), "ui/api/mcp.py"),
}
STATES = {"session_data": dict, "time_last_used": dict, "lock": object, "capacity": int}
STATE = {"blocks_config": object, "config_values": dict, "state_data": dict, "is_closed": bool}
PRIVATE_ARGUMENTS = {"_frontend": "app.py"}  # of Blocks.launch


def found(place: str):
    module, _, path = place.partition(":")
    held = import_module(module)
    for name in path.split("."):
        held = getattr(held, name)
    return held


@pytest.fixture(scope="module")
def page() -> gr.Blocks:
    with gr.Blocks() as page:
        box = gr.Textbox()
        box.change(lambda text: text, box, box)
    return page


@pytest.mark.parametrize("place", CALLED)
def test_what_is_called_takes_what_it_took(place):
    names, _ = CALLED[place]
    assert list(inspect.signature(found(place)).parameters)[: len(names)] == names


@pytest.mark.parametrize("path", HELD)
def test_a_page_holds_what_it_held(page, path):
    kind, _ = HELD[path]
    held = page
    for name in path.split("."):
        held = getattr(held, name)
    assert isinstance(held, found(kind) if isinstance(kind, str) else kind)


def test_states_of_pages_hold_what_they_held(page):
    states = found("gradio.state_holder:StateHolder")()
    assert all(isinstance(vars(states)[name], kind) for name, kind in STATES.items())
    state = found("gradio.state_holder:SessionState")(page)
    assert all(isinstance(vars(state)[name], kind) for name, kind in STATE.items())


@pytest.mark.parametrize("name", PRIVATE_ARGUMENTS)
def test_launch_takes_its_private_arguments(name):
    assert name in inspect.signature(gr.Blocks.launch).parameters


def test_an_event_tells_whether_its_client_is_there(page):
    event = found("gradio.queueing:Event")("s", page.fns[0], None, None)
    assert event.alive is True


def test_an_update_and_an_unknown_endpoint_look_as_they_did():
    assert gr.update(visible=True) == {"__type__": "update", "visible": True}
    assert issubclass(found("gradio.route_utils:FnIndexInferError"), Exception)
    assert 'property="og:' in (Path(gr.__file__).parent / "templates/frontend/index.html").read_text(encoding="utf-8")


def private(file: Path) -> set[str]:
    """Private names a file reads of others than self and cls, and private arguments it hands on."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node, ast.Attribute) and not own:
            names.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


@pytest.mark.slow
def test_no_private_name_of_gradio_is_used_beside_the_table():
    known = {path.split(".")[0] for path in HELD} | set(PRIVATE_ARGUMENTS)
    known |= {"_exit", "_get", "_put"}  # os; asyncio.Queue, whose methods ui/server/gradio_answers.py overrides
    files = [ROOT / "app.py", *(ROOT / "ui").rglob("*.py")]
    used = {file: private(file) for file in files if re.search("^(import|from) gradio", file.read_text(), re.M)}
    assert len(used) > 10
    assert not {str(file): names - known for file, names in used.items() if names - known}


def test_the_page_on_the_inside_tells_of_all_of_it():
    rows = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    used = [(name.rpartition(":")[2].split(".")[0], name.rpartition(".")[2], at) for name, (_, at) in CALLED.items()]
    used += [(path.split(".")[0], path.rpartition(".")[2], at) for path, (_, at) in HELD.items()]
    used += [(name, name, at) for name, at in PRIVATE_ARGUMENTS.items()]
    told = {at: " ".join(row for row in rows if row.startswith(f"| `{at}` |")) for *_, at in used}
    assert [name for *name, at in used if not any(each.rpartition(":")[2] in told[at] for each in name)] == []


def test_every_place_in_the_table_still_uses_it():
    places = [(name.rpartition(".")[2], at) for name, (_, at) in CALLED.items() if not name.endswith("__")]
    places = [(name.rpartition(":")[2], at) for name, at in places]
    places += [(path.rpartition(".")[2], at) for path, (_, at) in HELD.items()]
    unused = [(name, at) for name, at in [*places, *PRIVATE_ARGUMENTS.items()] if name not in (ROOT / at).read_text()]
    assert not unused
