"""The named endpoints on a live server, from programs: schemas, streams, refusals, cancelling; docs/api.md, run."""

import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import httpx
import pandas as pd
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from safetensors import safe_open

import app
from kvq_core.errors import KvqError
from kvq_core.events import Finished, LaneProgress, Step
from kvq_core.methods import methods
from kvq_core.models.second import SECOND_MODEL
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.presets import presets
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, Lane
from kvq_core.store.store import open_store
from tests.core.advice.test_advice import asked, noisy, option, rows
from tests.support.sample_record import make_sample
from tests.support.study_models import prompt, write_model
from ui.server.health import Health
from ui.service.services import Services

ENDPOINTS = {
    "/compare",
    "/add_lane",
    "/estimate",
    "/methods",
    "/models",
    "/presets",
    "/preset",
    "/claims",
    "/runs",
    "/run",
    "/arrays",
    "/share",
    "/advise",
    "/decide",
    "/estimate_decision",
    "/decision",
    "/fits",
    "/study",
    "/estimate_study",
    "/study_result",
    "/study_rows",
    "/share_study",
}
SMALL = {"prompt": "The tide came in. " * 12, "max_new_tokens": 10, "lanes": [{"method": "kivi", "label": "KIVI"}]}
PAGE = Path(__file__).parents[3] / "docs" / "api.md"
EXAMPLES = re.findall(r"^```(python|sh|python mcp)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


class Engine:
    """Runs the model, slowed down to be watched; a prompt can ask for a stand-in instead: "endless", or "named ID"."""

    def __init__(self):
        self.at_work = 0

    def compare(self, spec, store, owner=""):
        self.at_work += 1
        try:
            kind, *rest = spec.prompt.split()
            if kind == "endless":
                yield from self._endless(spec)
            elif kind == "named":
                yield from self._named(rest[0], store)
            else:
                for event in compare(spec, store):
                    yield event
                    time.sleep(0.1 if isinstance(event, Step) else 0)
        finally:
            self.at_work -= 1

    def _endless(self, spec):
        for done in range(1, 100_000):
            yield Step(done, 100_000, ["x"] * done, [LaneProgress("KIVI", ["y"] * done, [0.5] * done, [], None)])
            time.sleep(0.05)

    def _named(self, id, store):
        record, arrays = make_sample(id=id, prompt=f"named {id}", text=f"I am {id}.")
        yield Step(1, 1, [record.reference.text], [])
        store.save(record, arrays)
        yield Finished(record, arrays)


@pytest.fixture(scope="module")
def engine():
    return Engine()


@pytest.fixture(scope="module")
def server(engine, tmp_path_factory):
    services = Services(open_store(str(tmp_path_factory.mktemp("api") / "store")), engine.compare, estimate)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks = app.launch(services, Health(services), "127.0.0.1", port, mcp=find_spec("mcp") is not None)
    yield f"http://127.0.0.1:{port}"
    blocks.close(verbose=False)


@pytest.fixture(scope="module")
def client(server):
    return Client(server, verbose=False)


@pytest.fixture(scope="module")
def updates(client, real_model) -> list[dict]:
    """Of one comparison on the real model."""
    return list(client.submit(SMALL, api_name="/compare"))


def until(true, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def refusal(client: Client, *arguments: object, api_name: str) -> str:
    with pytest.raises(AppError) as caught:
        client.predict(*arguments, api_name=api_name)
    return str(caught.value)


@pytest.mark.slow
def test_the_endpoints_are_these_and_nothing_of_the_page(client):
    found = client.view_api(return_format="dict")
    assert set(found["named_endpoints"]) == ENDPOINTS and not found["unnamed_endpoints"]
    for name, endpoint in found["named_endpoints"].items():
        assert len(endpoint["description"]) > 40, name
        for value in (*endpoint["parameters"], *endpoint["returns"]):
            assert value["python_type"]["type"] != "Any", (name, value["label"])


@pytest.mark.slow
def test_a_comparison_has_the_fields_of_the_spec(client):
    (spec,) = client.view_api(return_format="dict")["named_endpoints"]["/compare"]["parameters"]
    assert set(spec["type"]["properties"]) == set(ComparisonSpec.model_fields)
    assert set(spec["type"]["properties"]["lanes"]["items"]["properties"]) == set(Lane.model_fields)
    assert "max_new_tokens: int" in spec["python_type"]["type"] and "required" not in spec["type"]


@pytest.mark.slow
def test_what_there_is_can_be_read(client):
    assert {method["name"] for method in client.predict(api_name="/methods")} == set(methods())
    assert {preset["name"] for preset in client.predict(api_name="/presets")} == set(presets())
    preset = client.predict("first-look", api_name="/preset")
    assert preset["spec"]["model"] == DEFAULT_MODEL and client.predict(api_name="/models")[0] == DEFAULT_MODEL
    claims = client.predict("squat", api_name="/claims")
    assert {claim["paper"] for claim in claims} == {"SQuat"} and len(client.predict(api_name="/claims")) > len(claims)
    assert "papers: " in refusal(client, "No such paper", api_name="/claims")
    assert all(claim["verdicts"][DEFAULT_MODEL] == claim["verdict"] for claim in claims)
    other = client.predict("squat", SECOND_MODEL, api_name="/claims")
    assert all(claim["verdicts"][SECOND_MODEL] == claim["verdict"] for claim in other)
    assert {claim["claim"] for claim in claims} >= {claim["claim"] for claim in other} != set()
    flips = [c["claim"] for c in claims if set(c["verdicts"].values()) >= {"holds", "does not hold here"}]
    assert flips == [claim["claim"] for claim in claims if claim["flips_with_the_model"]]
    assert f"models: {DEFAULT_MODEL}, " in refusal(client, "", "a/b", api_name="/claims")
    assert "Did you mean 'first-look'" in refusal(client, "first-lok", api_name="/preset")


@pytest.mark.real_model
def test_a_lane_is_added_to_a_run_and_is_a_run_of_its_own(client, updates):
    parent = updates[-1]["result"]["run"]
    told = list(client.submit(parent, {"method": "per_token", "label": "8 bits"}, api_name="/add_lane"))
    found = told[-1]["result"]
    assert found["run"] != parent and [lane["label"] for lane in found["lanes"]] == ["8 bits"]
    assert client.predict(found["run"], api_name="/run")["parent"] == parent
    assert found["reference"] == updates[-1]["result"]["reference"]
    assert "lane" in refusal(client, parent, {"method": "none such"}, api_name="/add_lane")
    assert "0" * 16 in refusal(client, "0" * 16, {"method": "kivi"}, api_name="/add_lane")


def test_an_estimate_tells_tokens_and_what_would_not_be_quantized(client):
    lane = {"method": "kivi", "knobs": {"residual_length": 128}}
    found = client.predict({"prompt": "Hi", "max_new_tokens": 4, "lanes": [lane]}, api_name="/estimate")
    assert found["prompt_tokens"] > 10 and found["bytes"] > 1e8 and found["refusal"] is None
    assert "would quantize nothing" in found["lanes"][0]["warning"]


def test_a_comparison_streams_and_ends_with_its_result(updates, client):
    stages = [update["stage"] for update in updates]
    partial = [update for update in updates if update["stage"] == "decoding"]
    assert stages[0] == "waiting" and stages[-1] == "finished" and "prefill" in stages
    lengths = [len(update["reference"]) for update in partial]
    assert len(set(lengths)) >= 3 and lengths == sorted(lengths) and partial[-1]["lanes"][0]["kld_mean"] > 0
    result = updates[-1]["result"]
    record = client.predict(result["run"], api_name="/run")
    (lane,) = result["lanes"]
    assert lane["kld_mean"] == record["lanes"][0]["metrics"]["kld_mean"] and lane["n_scored"] == 9
    assert lane["key_bits"] == record["lanes"][0]["memory"]["key_bits"] and lane["verdict"] == "no verdict"
    assert result["reference"] == record["reference"]["text"] and record["spec"]["prompt"] == SMALL["prompt"]
    assert result["link"] == f"{client.src.rstrip('/')}/?run={result['run']}"


def test_a_stored_run_is_listed_and_its_arrays_come_as_a_file(updates, client):
    run = updates[-1]["result"]["run"]
    listed = {found["run"]: found for found in client.predict(api_name="/runs")}
    assert listed[run]["lanes"] == ["KIVI"] and len(listed) >= 2  # the runs that ship with the app
    with safe_open(client.predict(run, api_name="/arrays"), "pt") as arrays:
        assert "lane/0/kld" in arrays.keys()
    again = client.predict(SMALL, api_name="/compare")
    assert again["result"]["reused"] and again["result"]["run"] == run


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "prompt is missing."),
        ([], "not list"),
        ("x", "not str"),
        ({**SMALL, "lane": []}, "Unknown field 'lane'"),
        ({**SMALL, "lanes": [{"method": "kivo"}]}, "lane 1: Unknown method 'kivo'. Did you mean 'kivi'?"),
        ({**SMALL, "max_new_tokens": 9000}, "max_new_tokens = 9000 is not allowed"),
        ({**SMALL, "prompt": "word " * 9000}, "more than the 8192 tokens of context"),
        ({**SMALL, "model": "../../etc"}, "not a model directory"),
    ],
    ids=["empty", "list", "text", "field", "method", "tokens", "long", "model"],
)
@pytest.mark.real_model
@pytest.mark.parametrize("endpoint", ["/compare", "/estimate"])
def test_what_cannot_run_is_refused_in_one_line(client, endpoint, spec, said):
    line = refusal(client, spec, api_name=endpoint)
    assert said in line and "\n" not in line and "Traceback" not in line and len(line) < 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said"), [("f" * 16, "not in this store"), ("../../etc", "not valid"), ("", "not valid")]
)
@pytest.mark.parametrize("endpoint", ["/run", "/arrays", "/share"])
def test_an_unknown_run_is_refused_in_one_line(client, endpoint, run, said):
    line = refusal(client, run, api_name=endpoint)
    assert said in line and "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "arguments", "said"),
    [
        ("/preset", [["first-look"]], "name = ['first-look'] is not allowed: it must be text."),
        ("/run", [], "not the values that are taken here"),
        ("/run", ["f" * 16], "not the values that are taken here"),
        ("/preset", [None], "name = nothing is not allowed"),
        ("/claims", [3, ""], "paper = 3 is not allowed"),
        ("/run", ["f" * 16, 7], "key = 7 is not allowed"),
        ("/run", [{"a": 1}, ""], "not valid"),
        ("/arrays", [[], ""], "not valid"),
        ("/share", ["f" * 16, "", "false"], "it must be true or false"),
        ("/advise", ["f" * 16, "", 8192, 1, "close", "", ""], "is not in this store"),
        ("/advise", ["f" * 16, "", "many", 1, "close", "", ""], "context = 'many' is not allowed"),
        ("/advise", ["f" * 16, "much", 8192, 1, "close", "", ""], "memory = 'much' is not allowed"),
        ("/estimate", [{**SMALL, "temperature": math.nan}], "temperature = nan is not allowed"),
        ("/estimate", [{**SMALL, "seed": 1e400}], "seed = inf is not allowed"),
        ("/compare", [{**SMALL, "prompt": "\ud800"}], "prompt = '\\ud800' is not allowed"),
        ("/compare", [{**SMALL, "\ud800": 1}], "A name = '\\ud800' is not allowed"),
        (
            "/estimate",
            [{**SMALL, "lanes": [{"method": "squat", "knobs": {"regularization": math.inf}}]}],
            "regularization = inf is not allowed",
        ),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_line(server, endpoint, arguments, said):
    """As raw JSON: gradio_client would not send all of these."""
    raw = json.dumps({"data": arguments}).encode()
    post = httpx.post(f"{server}/gradio_api/call{endpoint}", content=raw, headers={"Content-Type": "application/json"})
    with httpx.stream("GET", f"{server}/gradio_api/call{endpoint}/{post.json()['event_id']}", timeout=90) as stream:
        lines = list(stream.iter_lines())
    assert lines[-3] == "event: error" and said in json.loads(lines[-2].removeprefix("data: "))["error"], lines


@pytest.mark.slow
def test_an_error_nobody_thought_of_tells_nothing_of_the_server(client, engine, monkeypatch):
    def broken(spec, store):
        raise RuntimeError("/srv/secret")
        yield

    monkeypatch.setattr(engine, "_endless", lambda spec: broken(spec, None))
    line = refusal(client, {**SMALL, "prompt": "endless"}, api_name="/compare")
    assert "should not have" in line and "secret" not in line


@pytest.mark.slow
def test_two_clients_at_once_each_get_their_own(server):
    ids = ["a" * 16, "b" * 16]
    found = {}

    def ask(id):
        spec = {**SMALL, "prompt": f"named {id} please"}
        found[id] = Client(server, verbose=False).predict(spec, api_name="/compare")["result"]

    threads = [threading.Thread(target=ask, args=[id]) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {id: (r["run"], r["lanes"][0]["text"]) for id, r in found.items()} == {id: (id, f"I am {id}.") for id in ids}


@pytest.mark.slow
def test_one_client_can_run_several_at_once(client):
    ids = ["a" * 15 + "1", "a" * 15 + "2"]
    jobs = [client.submit({**SMALL, "prompt": f"named {id}"}, api_name="/compare") for id in ids]
    assert [job.result(120)["result"]["run"] for job in jobs] == ids


@pytest.mark.slow
def test_cancelling_frees_the_engine(server, engine):
    job = Client(server, verbose=False).submit({**SMALL, "prompt": "endless"}, api_name="/compare")
    until(lambda: any(update["stage"] == "decoding" for update in job.outputs()))
    assert engine.at_work == 1
    job.cancel()
    until(lambda: engine.at_work == 0)


LEAVES = """
import os, sys
from gradio_client import Client
for update in Client(sys.argv[1], verbose=False).submit({"prompt": "endless", "lanes": []}, api_name="/compare"):
    if update["stage"] == "decoding":
        os._exit(0)
"""


@pytest.mark.slow
def test_a_program_that_ends_cancels_its_run(server, engine):
    subprocess.run([sys.executable, "-c", LEAVES, server], check=True, timeout=150)
    until(lambda: engine.at_work == 0)


def test_a_connection_that_closes_cancels_its_run(server, engine):
    spec = {"prompt": "endless", "lanes": []}
    event = httpx.post(f"{server}/gradio_api/call/compare", json={"data": [spec]}).json()["event_id"]
    with httpx.stream("GET", f"{server}/gradio_api/call/compare/{event}", timeout=90) as stream:
        assert any('"stage": "decoding"' in line for line in stream.iter_lines())
        assert engine.at_work == 1
    until(lambda: engine.at_work == 0)


def test_advice_is_answered_as_json_with_what_was_asked(client, monkeypatch):
    given = {}
    found = asked(rows("small", noisy(0.002)), [option("small")])
    monkeypatch.setattr("ui.api.decisions.advised", lambda **more: given.update(more) or found)
    told = client.predict("a" * 16, "24GB", 4096, 2, "marginal", "vllm", api_name="/advise")
    assert told == found.model_dump(mode="json") and told["label"] == "small"
    assert isinstance(given.pop("store").root, str)
    shape = {"context": 4096, "batch": 2, "memory": "24GB"}
    assert given == {"study": "a" * 16, **shape, "tolerance": "marginal", "engine": "vllm"}


@pytest.mark.slow
def test_on_a_public_instance_a_run_opens_with_its_key_until_it_is_shared(client, monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", DEFAULT_MODEL)
    run = "d" * 16
    key = client.predict({**SMALL, "prompt": f"named {run}"}, api_name="/compare")["result"]["key"]
    assert len(key) == 32 and client.predict(run, key, api_name="/run")["id"] == run
    for endpoint in ("/run", "/arrays", "/share"):
        assert "has not shared it" in refusal(client, run, api_name=endpoint)
    assert client.predict(run, key, api_name="/share").endswith(f"?run={run}")
    assert client.predict(run, api_name="/run")["id"] == run
    assert run not in {found["run"] for found in client.predict(api_name="/runs")}
    for stranger in ("", "0" * 32):
        assert "by its maker alone" in refusal(client, run, stranger, True, api_name="/share")
    assert run not in {found["run"] for found in client.predict(api_name="/runs")}
    client.predict(run, key, True, api_name="/share")
    assert run in {found["run"] for found in client.predict(api_name="/runs")}


@pytest.mark.parametrize(("kind", "code"), EXAMPLES, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(EXAMPLES)])
@pytest.mark.real_model
def test_the_examples_of_the_documentation_work(server, kind, code):
    assert {kind for kind, _ in EXAMPLES} == {"python", "sh", "python mcp"}
    code = code.replace("http://127.0.0.1:7860", server)
    if kind == "python mcp":
        pytest.importorskip("mcp", reason="gradio[mcp] is not installed")
    if "pip install" in code:
        assert set(code.split("\n")) == {"pip install 'gradio[mcp]==6.31.*'", "KVQ_MCP=1 python app.py", ""}
        return  # the server of these tests is started that way
    if kind == "sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["bash", "-ec", code] if kind == "sh" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = {"python": "bits a key element, KLD", "sh": '"name": "first-look"', "python mcp": '"prompt_tokens"'}
    assert expected[kind] in done.stdout.replace("'prompt_tokens'", '"prompt_tokens"'), done.stdout


@pytest.mark.slow
def test_tools_of_mcp_are_the_endpoints_with_their_descriptions(server):
    pytest.importorskip("mcp", reason="gradio[mcp] is not installed")
    import asyncio

    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def ask():
        async with (
            streamable_http_client(f"{server}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            spec = {**SMALL, "prompt": f"named {'e' * 16}"}
            return (
                tools,
                await session.call_tool("compare", {"spec": spec}),
                await session.call_tool("run", {"run": "x"}),
                await session.call_tool("models", {}),
            )

    tools, ran, refused, models = asyncio.run(ask())
    assert {f"/{name}" for name in tools} == ENDPOINTS
    assert "full-precision KV cache" in tools["compare"].description
    assert "prompt, and lanes" in tools["compare"].inputSchema["properties"]["spec"]["description"]
    told = json.loads(ran.content[0].text)
    assert not ran.isError and told["stage"] == "finished" and told["result"]["run"] == "e" * 16
    assert DEFAULT_MODEL in json.loads(models.content[0].text)
    assert refused.isError and "16 hexadecimal" in refused.content[0].text


def test_without_the_package_mcp_is_refused_with_the_command(monkeypatch):
    monkeypatch.setenv("KVQ_MCP", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KvqError, match=r"pip install 'gradio\[mcp\]=="):
        app.check_mcp(settings())
    monkeypatch.setenv("KVQ_MCP", "0")
    app.check_mcp(settings())


@pytest.mark.real_model
def test_a_study_streams_and_is_there_by_its_id(client):
    asked = {**SMALL, "max_new_tokens": 4, "prompts": {"texts": ["The tide came in.", "The tide went out."]}}
    del asked["prompt"]
    told = client.predict(asked, api_name="/estimate_study")
    assert (told["cells"], told["todo"], told["refusal"]) == (2, 2, None) and told["study"] in told["sentence"]
    updates = list(client.submit(asked, api_name="/study"))
    assert updates[-1]["stage"] == "finished" and {u["stage"] for u in updates} >= {"computing"}
    last = updates[-1]
    assert (last["done"], last["total"], last["study"]) == (2, 2, told["study"])
    (lane,) = last["result"]["lanes"]
    assert last["lanes"][0]["kld_mean"] == lane["kld_mean"] > 0 and "no intervals" in last["result"]["notes"][0]
    assert client.predict(last["study"], api_name="/study_result") == last["result"]
    rows = pd.read_parquet(client.predict(last["study"], api_name="/study_rows"))
    assert list(rows["lane"]) == ["KIVI", "KIVI"] and rows["kld_mean"].mean() == pytest.approx(lane["kld_mean"])
    assert client.predict(asked, api_name="/estimate_study")["todo"] == 0
    assert client.predict(last["study"], api_name="/share_study") == last["link"]


def test_a_study_that_cannot_be_is_refused_in_one_line(client):
    asked = {"lanes": SMALL["lanes"], "prompts": {"file": "/etc/passwd"}}
    assert "the API takes no file" in refusal(client, asked, api_name="/study")
    assert "not in this store" in refusal(client, "0" * 16, api_name="/study_result")
    assert "it must be text" in refusal(client, 5, api_name="/study_rows")


@pytest.mark.slow
def test_a_decision_streams_and_is_there_by_its_id(client, tmp_path, monkeypatch):
    monkeypatch.setattr("kvq_core.advice.deciding.NEW_TOKENS", 3)
    model = str(write_model(tmp_path / "tiny"))
    asked = {"model": model, "prompts": {"texts": [prompt(at) for at in range(5)]}, "context": 200}
    asked |= {"engine": "llama.cpp", "tolerance": "100"}
    told = client.predict(asked, api_name="/estimate_decision")
    assert (told["runs"], told["todo"], told["passes"], told["refusal"]) == (5, 5, 0, None)
    updates = list(client.submit(asked, api_name="/decide"))
    last = updates[-1]
    assert last["stage"] == "finished" and last["study"] == told["study"] and updates[0]["decision"] is None
    found = last["decision"]
    assert found["advice"]["flags"].startswith("llama-server") and found["link"].endswith(f"?decide={found['id']}")
    assert {each["label"] for each in found["grounds"]["fits"]} >= {"fp16", found["advice"]["label"]}
    assert client.predict(found["id"], api_name="/decision") == found
    again = {"study": last["study"], "context": 200, "engine": "llama.cpp", "tolerance": "100"}
    assert client.predict(again, api_name="/estimate_decision")["todo"] == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("x", "it must be an object"),
        ({}, "give study, or model and prompts"),
        ({"study": "0" * 16}, "is not in this store"),
        ({"study": "0" * 16, "memory": "24"}, "memory = '24' is not allowed"),
        ({"study": 5}, "it must be text"),
        ({"prompts": {"file": "/etc/passwd"}}, "the API takes no file"),
        ({"prompts": {"texts": ["a"]}, "room": 1}, "Unknown field 'room'"),
    ],
)
def test_a_question_that_cannot_be_is_refused_in_one_line(client, asked, said):
    assert said in refusal(client, asked, api_name="/estimate_decision")


def test_what_fits_is_told_of_an_offered_model_alone(client):
    found = client.predict("", "24GB", 4096, 2, api_name="/fits")
    assert (found["context"], found["batch"], found["memory"]) == (4096, 2, 24 * 10**9)
    plain = next(each for each in found["formats"] if each["name"] == "fp16")
    assert plain["tensors"] == 2 * 4096 * 2 * 30 * 3 * 64 * 2 and all(row["fits"] for row in plain["engines"])
    assert "is not offered here" in refusal(client, "/etc", api_name="/fits")
    assert "numbers from 1" in refusal(client, "", "", 0, api_name="/fits")
    assert "is not in this store" in refusal(client, "f" * 16, api_name="/decision")
