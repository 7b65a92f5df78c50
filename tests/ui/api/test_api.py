"""The named endpoints on a live server, from programs: schemas, what there is to read, MCP; docs/api.md, run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import app
from kvq_core.errors import KvqError
from kvq_core.methods import methods
from kvq_core.models.second import SECOND_MODEL
from kvq_core.presets import presets
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, Lane
from tests.support.api_server import ENDPOINTS, SMALL, refusal

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
EXAMPLES = re.findall(r"^```(python|sh|python mcp)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


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


@pytest.mark.slow
@pytest.mark.real_model
def test_an_estimate_tells_tokens_and_what_would_not_be_quantized(client):
    lane = {"method": "kivi", "knobs": {"residual_length": 128}}
    found = client.predict({"prompt": "Hi", "max_new_tokens": 4, "lanes": [lane]}, api_name="/estimate")
    assert found["prompt_tokens"] > 10 and found["bytes"] > 1e8 and found["refusal"] is None
    assert "would quantize nothing" in found["lanes"][0]["warning"]


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
@pytest.mark.real_model
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
