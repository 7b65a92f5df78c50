"""GGUF files downloaded by the Hub's own client, from a server on this machine that speaks its interface."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvq_core.errors import ModelError
from kvq_core.machine.progress import downloading
from kvq_core.models import conversion_progress, load, outline, prepare, second
from kvq_core.models.gguf.folder import last
from kvq_core.record.events import Loading
from tests.support.gguf_files import source, write
from tests.support.hub_server import COMMIT, Hub, serving, use
from ui.html.status import event_line

REPO = "owner/repo-GGUF"
PARTS = ("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf")


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    return write(tmp_path_factory.mktemp("hub") / "m.gguf", source("llama", head_dim=32)).read_bytes()


@pytest.fixture
def hub(content: bytes, tmp_path, monkeypatch: pytest.MonkeyPatch):
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "other-Q8_0.gguf", *PARTS, "README.md")
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    with serving(Hub(REPO, dict.fromkeys(names, content))) as found:
        use(monkeypatch, found.endpoint, str(tmp_path / "cache"))
        yield found


def refusal(id: str, revision: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        load(id, revision)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    return str(caught.value)


def nothing_converted(tmp_path: Path) -> bool:
    return not list((tmp_path / "home").glob("models/*"))


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["Q4_K_M", "q4_k_m", "m-Q4_K_M.gguf"])
def test_a_file_is_downloaded_once_and_converted(hub: Hub, tmp_path, monkeypatch, wanted: str) -> None:
    loaded = load(f"{REPO}:{wanted}")
    assert loaded.id.startswith("gguf:") and loaded.shape.layers == 2 and hub.ranges == [None]
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    assert load(f"{REPO}:{wanted}", COMMIT).id == loaded.id and hub.ranges == [None]


def broken(hub: Hub, content: bytes, tmp_path: Path) -> Path:
    """What is there of a download that broke."""
    hub.breaks = len(content) // 2
    said = refusal(f"{REPO}:Q4_K_M")
    assert "could not be had from the Hub" in said and nothing_converted(tmp_path)
    hub.breaks, hub.broken, hub.asked = None, False, []
    (part,) = (tmp_path / "cache").rglob("*.part")
    return part


@pytest.mark.slow
def test_a_download_that_broke_goes_on_where_it_was(hub: Hub, content: bytes, tmp_path) -> None:
    size = broken(hub, content, tmp_path).stat().st_size
    assert 0 < size < len(content)
    assert load(f"{REPO}:Q4_K_M").shape.layers == 2
    assert hub.ranges == [f"bytes={size}-"] and not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.slow
def test_how_far_a_download_is_can_be_seen(hub: Hub, content: bytes) -> None:
    """By whoever started it, and by others meanwhile; then the conversion tells."""
    seen = [(step, conversion_progress()) for step in prepare(f"{REPO}:Q4_K_M")]
    assert all(step == told for step, told in seen) and conversion_progress() is None
    came = [step for step, _ in seen if step.unit == "bytes"]
    assert len(came) > 3 and [step.done for step in came] == sorted({step.done for step in came})
    assert came[-1].done == came[0].total == len(content) and seen[len(came)][0].unit == "weights"
    said = event_line(Loading("m", 120_000_000, 491_400_064, "downloading"))
    assert "Downloading the model: 120 of 491 MB" in said
    assert not list(prepare(f"{REPO}:Q4_K_M"))


def test_a_download_that_somebody_stops_goes_on(hub: Hub, content: bytes, tmp_path) -> None:
    steps = prepare(f"{REPO}:Q4_K_M")
    next(steps), next(steps)
    steps.close()
    (part,) = (tmp_path / "cache").rglob("*.part")
    size = part.stat().st_size
    assert 0 < size < len(content) and conversion_progress() is None
    assert load(f"{REPO}:Q4_K_M").shape.layers == 2 and hub.ranges == [None, f"bytes={size}-"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1GB", "100KB"])
def test_weights_of_a_model_that_is_no_gguf_file_tell_as_well(hub: Hub, tmp_path, size: str) -> None:
    """In one file, or in several with an index."""
    (tmp_path / "m.gguf").write_bytes(hub.files["m-Q8_0.gguf"])
    model, folder = load(str(tmp_path / "m.gguf")), tmp_path / "m"
    model.tokenizer.save_pretrained(folder)
    model.model.save_pretrained(folder, max_shard_size=size)
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    steps = list(prepare(REPO))
    held = sum(len(held) for name, held in hub.files.items() if name.endswith(".safetensors"))
    assert steps[-1] == downloading(held, held) and [s.done for s in steps] == sorted({s.done for s in steps})
    asked = len(hub.ranges)
    assert load(REPO).shape.layers == model.shape.layers
    weights = [path for method, path, _ in hub.asked if method == "GET" and path.endswith(".safetensors")]
    assert len(weights) == len(set(weights)) and len(hub.ranges) > asked, "what is small comes afterwards"
    assert list(prepare(REPO)) == []


@pytest.mark.slow
def test_without_a_connection_a_model_is_loaded_from_the_cache_or_refused_at_once(hub: Hub, tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(hub.files["m-Q8_0.gguf"])
    model, folder = load(str(tmp_path / "m.gguf")), tmp_path / "m"
    model.tokenizer.save_pretrained(folder)
    model.model.save_pretrained(folder)
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert load(REPO).shape.layers == model.shape.layers
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    use(monkeypatch, "http://127.0.0.1:9", str(tmp_path / "cache"))  # nobody listens there
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("its client tries again"))
    assert load(REPO).shape.layers == model.shape.layers
    said = refusal("nobody/nothing")
    assert "it is not on this machine, and http://127.0.0.1:9 cannot be reached. Check its id" in said


@pytest.mark.slow
def test_what_no_machine_holds_is_not_downloaded(hub: Hub, tmp_path, monkeypatch) -> None:
    """Nor for what needs no weights: only the configuration and the tokenizer come then."""
    (tmp_path / "m.gguf").write_bytes(hub.files["m-Q8_0.gguf"])
    model, folder = load(str(tmp_path / "m.gguf")), tmp_path / "m"
    model.tokenizer.save_pretrained(folder)
    model.model.save_pretrained(folder)
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert outline(REPO).shape.layers == model.shape.layers
    monkeypatch.setattr("kvq_core.models.support.room_for", lambda needed: 1)
    with pytest.raises(ModelError, match="needs .* GB for its weights"):
        list(prepare(REPO))
    assert not [path for method, path, _ in hub.asked if method == "GET" and path.endswith(".safetensors")]


@pytest.mark.slow
def test_what_is_not_the_hubs_is_removed(hub: Hub, content: bytes, tmp_path) -> None:
    part = broken(hub, content, tmp_path)
    part.write_bytes(b"x" * part.stat().st_size)
    assert "is not what the Hub has; it was removed. Try again" in refusal(f"{REPO}:Q4_K_M")
    assert not list((tmp_path / "cache").rglob("*.part")) and nothing_converted(tmp_path)
    assert load(f"{REPO}:Q4_K_M").shape.layers == 2


def test_a_disk_that_is_too_small_is_told_before(hub: Hub, monkeypatch) -> None:
    monkeypatch.setattr("kvq_core.models.gguf.fetching.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "GB of the disk of" in refusal(f"{REPO}:Q4_K_M") and not hub.ranges


@pytest.mark.slow
def test_the_second_model_goes_on_too(hub: Hub, content: bytes, tmp_path, monkeypatch) -> None:
    told = {"REPO": REPO, "NAME": "m-Q4_K_M.gguf", "SIZE": len(content), "SHA256": hashlib.sha256(content).hexdigest()}
    for name, value in told.items():
        monkeypatch.setattr(second, name, value)
    hub.breaks = len(content) // 2
    with pytest.raises(ModelError, match="could not be had from the Hub"):
        last(second.download_second())
    hub.breaks, hub.broken, hub.asked = None, False, []
    assert last(second.download_second()) == tmp_path / "home" / "downloads" / told["NAME"]
    (asked,) = hub.ranges
    assert asked is not None


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("Q5_K_M", "has no .gguf file of the quantization 'Q5_K_M'; there are: m-F16-00001-of-00002.gguf, "),
        ("Q8_0", "has several files of the quantization 'Q8_0'; there are: m-Q8_0.gguf, other-Q8_0.gguf. Give one as"),
        ("F16", "has the quantization 'F16' in 2 parts alone, and models in parts are not read"),
        (PARTS[0], f"{PARTS[0]} is one of the parts of a model, and models in parts are not read"),
        ("absent.gguf", "could not be had from the Hub: "),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_downloaded(hub: Hub, tmp_path, wanted: str, said: str) -> None:
    assert said in refusal(f"{REPO}:{wanted}")
    assert not hub.ranges and nothing_converted(tmp_path)


def test_repositories_and_revisions_that_are_not_there(hub: Hub) -> None:
    assert "could not be had from the Hub" in refusal("nobody/nothing:Q4_K_M")
    assert "could not be had from the Hub" in refusal(f"{REPO}:m-Q4_K_M.gguf", "no-such-branch")


@pytest.mark.slow
def test_without_a_connection_what_was_downloaded_is_used(hub: Hub, monkeypatch) -> None:
    loaded = load(f"{REPO}:m-Q4_K_M.gguf")
    monkeypatch.setattr("kvq_core.models.loader._held", {})
    use(monkeypatch, "http://127.0.0.1:9", os.environ["KVQ_HOME"] + "/../cache")  # nobody listens there
    for named in ("m-Q4_K_M.gguf", "Q4_K_M"):
        monkeypatch.setattr("kvq_core.models.loader._held", {})
        assert load(f"{REPO}:{named}").id == loaded.id
    said = refusal(f"{REPO}:m-Q8_0.gguf")
    assert "could not be had from the Hub" in said and "the connection" in said


@pytest.mark.long("combine", sample=0)
@pytest.mark.slow
def test_the_command_line_does_all_of_it(hub: Hub, tmp_path) -> None:
    told = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "own"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "kvq_core", "inspect", f"{REPO}:Q4_K_M", "--json"]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert '"layers"' in done.stdout and hub.ranges == [None]
    command[4] = f"{REPO}:Q8_0"
    failed = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, timeout=300)
    assert failed.returncode and "has several files of the quantization 'Q8_0'" in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
