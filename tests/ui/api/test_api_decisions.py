"""Studies, advice, decisions and what fits through the API."""

import pandas as pd
import pytest

from tests.core.recommend.test_advice import asked, noisy, option, rows
from tests.support.api_server import SMALL, refusal
from tests.support.study_models import prompt, write_model


@pytest.mark.slow
def test_advice_is_answered_as_json_with_what_was_asked(client, monkeypatch):
    given = {}
    found = asked(rows("small", noisy(0.002)), [option("small")])
    monkeypatch.setattr("ui.api.decisions.advised", lambda **more: given.update(more) or found)
    told = client.predict("a" * 16, "24GB", 4096, 2, "marginal", "vllm", api_name="/advise")
    assert told == found.model_dump(mode="json") and told["label"] == "small"
    assert isinstance(given.pop("store").root, str)
    shape = {"context": 4096, "batch": 2, "memory": "24GB"}
    assert given == {"study": "a" * 16, **shape, "tolerance": "marginal", "engine": "vllm", "batched_tokens": None}


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


@pytest.mark.slow
def test_a_decision_streams_and_is_there_by_its_id(client, tmp_path, monkeypatch):
    monkeypatch.setattr("kvq_core.recommend.recommend.NEW_TOKENS", 3)
    model = str(write_model(tmp_path / "tiny"))
    asked = {"model": model, "prompts": {"texts": [prompt(at) for at in range(12)]}, "context": 200}
    asked |= {"engine": "llama.cpp", "tolerance": "100"}
    told = client.predict(asked, api_name="/estimate_decision")
    assert (told["runs"], told["todo"], told["passes"], told["refusal"]) == (12, 12, 6, None)
    updates = list(client.submit(asked, api_name="/decide"))
    last = updates[-1]
    assert last["stage"] == "finished" and last["study"] == told["study"] and updates[0]["decision"] is None
    found = last["decision"]
    assert found["advice"]["flags"].startswith("llama-server") and found["link"].endswith(f"?decide={found['id']}")
    assert {each["label"] for each in found["grounds"]["fits"]} >= {"fp16", found["advice"]["label"]}
    assert client.predict(found["id"], api_name="/decision") == found
    again = {"study": last["study"], "context": 200, "engine": "llama.cpp", "tolerance": "100"}
    assert client.predict(again, api_name="/estimate_decision")["todo"] == 0


@pytest.mark.slow
def test_what_fits_is_told_of_an_offered_model_alone(client):
    found = client.predict("", "24GB", 4096, 2, api_name="/fits")
    assert (found["context"], found["batch"], found["memory"]) == (4096, 2, 24 * 10**9)
    plain = next(each for each in found["formats"] if each["name"] == "fp16")
    assert plain["tensors"] == 2 * 4096 * 2 * 30 * 3 * 64 * 2 and all(row["fits"] for row in plain["engines"])
    assert "is not offered here" in refusal(client, "/etc", api_name="/fits")
    assert "numbers from 1" in refusal(client, "", "", 0, api_name="/fits")
    assert "is not in this store" in refusal(client, "f" * 16, api_name="/decision")
