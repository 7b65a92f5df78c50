"""Comparisons through the API: streams, stored runs, several at once, cancelling, keys."""

import subprocess
import sys
import threading

import httpx
import pytest
from gradio_client import Client
from safetensors import safe_open

from kvq_core.spec import DEFAULT_MODEL
from tests.support.api_server import SMALL, refusal, until


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


@pytest.mark.slow
@pytest.mark.real_model
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
@pytest.mark.real_model
def test_one_client_can_run_several_at_once(client):
    ids = ["a" * 15 + "1", "a" * 15 + "2"]
    jobs = [client.submit({**SMALL, "prompt": f"named {id}"}, api_name="/compare") for id in ids]
    assert [job.result(120)["result"]["run"] for job in jobs] == ids


@pytest.mark.slow
@pytest.mark.real_model
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
@pytest.mark.real_model
def test_a_program_that_ends_cancels_its_run(server, engine):
    subprocess.run([sys.executable, "-c", LEAVES, server], check=True, timeout=150)
    until(lambda: engine.at_work == 0)


@pytest.mark.slow
@pytest.mark.real_model
def test_a_connection_that_closes_cancels_its_run(server, engine):
    spec = {"prompt": "endless", "lanes": []}
    event = httpx.post(f"{server}/gradio_api/call/compare", json={"data": [spec]}).json()["event_id"]
    with httpx.stream("GET", f"{server}/gradio_api/call/compare/{event}", timeout=90) as stream:
        assert any('"stage": "decoding"' in line for line in stream.iter_lines())
        assert engine.at_work == 1
    until(lambda: engine.at_work == 0)


@pytest.mark.slow
@pytest.mark.real_model
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
