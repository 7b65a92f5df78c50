"""Methods from files and packages: what is offered, what is refused, and that nothing passes unmarked."""

import hashlib
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kvq_core
from kvq_core.errors import MethodError, SpecError
from kvq_core.methods import Method, failures, known, load_method_file, make, methods, origin_of
from kvq_core.pipeline.assemble import run_id
from kvq_core.spec import ComparisonSpec, Lane, parse_spec
from tests.support.engine_runs import run_engine
from tests.support.own_methods import REF, example, forget_afterwards, tensors, written
from tests.support.tiny_models import prompt_ids, tiny


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    forget_afterwards(monkeypatch)


def test_a_file_offers_its_method_under_its_name_and_hash(tmp_path):
    file = written(tmp_path)
    assert load_method_file(file) == ("mine",)
    origin = origin_of(methods()["mine"])
    assert origin.words == "my.py" and str(tmp_path) not in origin.words
    assert origin.version == hashlib.sha256(file.read_bytes()).hexdigest() == make("mine").data_hash(REF)
    assert list(methods()) == sorted(methods()) and origin_of(methods()["kivi"]) is None
    keys, values = tensors()
    found = kvq_core.roundtrip(make("mine"), keys, values)
    assert found.key_bits == 16 and torch.equal(found.keys, keys.half().float())


def test_nobody_changes_what_methods_gives():
    with pytest.raises(TypeError):
        methods()["mine"] = Method
    with pytest.raises(TypeError):
        del methods()["kivi"]


def test_the_same_file_again_is_the_same_and_a_changed_one_takes_its_place(tmp_path):
    first = written(tmp_path)
    load_method_file(first)
    cls, hash = methods()["mine"], make("mine").data_hash(REF)
    assert load_method_file(first) == ("mine",) and methods()["mine"] is cls
    load_method_file(written(tmp_path, top="# another"))
    assert make("mine").data_hash(REF) != hash


@pytest.mark.parametrize("taken", ["kivi", "mine"])
def test_a_name_that_is_taken_is_refused_in_one_line(tmp_path, taken):
    load_method_file(written(tmp_path))
    before = dict(methods())
    with pytest.raises(SpecError) as refusal:
        load_method_file(written(tmp_path, "other.py", name=taken))
    whence = "my.py" if taken == "mine" else "of this project"
    assert str(refusal.value) == f"other.py: a method '{taken}' is there already ({whence}); give it another name."
    assert dict(methods()) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top": "1 / 0"}, "my.py cannot be loaded: line 5: ZeroDivisionError: division by zero"),
        ({"top": "def"}, "my.py cannot be loaded: line 5: SyntaxError"),
        ({"top": "import nowhere_at_all"}, "ModuleNotFoundError"),
        ({"top": "raise SystemExit(3)"}, "SystemExit: 3"),
        ({"name": "a b"}, "my.py: name = 'a b' of Mine is not allowed"),
        ({"name": '\\"><b>'}, "is not allowed"),
        ({"body": "def windows(self): return 3"}, "mine (my.py): windows gives no pair of Windows."),
        ({"body": "def summary(self): 1 / 0"}, "mine (my.py): ZeroDivisionError: division by zero."),
        ({"body": "knob: int"}, "mine (my.py): its knobs have no sound defaults: knob: Field required."),
        ({"body": "title: ClassVar[str] = ''"}, "mine (my.py): it has no title."),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_file_that_is_no_method_is_one_line_and_leaves_nothing(tmp_path, changes, said):
    before = dict(methods())
    with pytest.raises(SpecError) as refusal:
        load_method_file(written(tmp_path, **changes))
    line = str(refusal.value)
    assert said in line and "my.py" in line and "\n" not in line and len(line) < 600
    assert dict(methods()) == before


def test_files_that_hold_none_or_cannot_be_read(tmp_path):
    (tmp_path / "empty.py").write_text("from kvq_core.methods.kivi import Kivi\n")  # not its own
    with pytest.raises(SpecError, match="empty.py holds no method"):
        load_method_file(tmp_path / "empty.py")
    with pytest.raises(SpecError, match="Cannot read the method file .*nowhere.py: No such file"):
        load_method_file(tmp_path / "nowhere.py")
    (tmp_path / "abstract.py").write_text(
        "from typing import ClassVar\nfrom kvq_core.methods import Method\n"
        "class A(Method):\n    name: ClassVar[str] = 'a'\n    title: ClassVar[str] = 'A'\n"
    )
    with pytest.raises(SpecError, match=r"a \(abstract.py\): it does not define fit and windows"):
        load_method_file(tmp_path / "abstract.py")


WRONG = {
    "fit raises": ({"fit": "raise ValueError('no\\nsuch')"}, "mine (my.py): ValueError: no such"),
    "fit gives nothing": ({"fit": "return None"}, "mine (my.py): fit gave NoneType, not Fitted"),
    "no codec": ({"fit": "return Fitted(None, None)"}, "mine (my.py): fit gave no codec for keys"),
    "NaN": ({"encode": "x = x / 0 * 0"}, "mine (my.py): reads back NaN or infinity"),
    "shape": ({"decode": "return torch.zeros(1, 2, 3)"}, "mine (my.py): reads back (1, 2, 3) for tokens of shape"),
    "tokens": ({"encode": "x = x[..., 1:, :]"}, "mine (my.py): encode gave a block of"),
    "no tensor": ({"decode": "return 3"}, "mine (my.py): reads back int, not a tensor"),
    "bits": ({"bits": 2}, "mine (my.py): claims 2 bits an element where its tensors take 16"),
    "bits are no number": ({"bits": "'nan'"}, "mine (my.py): claims nan bits"),
    "later": ({"encode": "if start > 15: raise RuntimeError('late')"}, "mine (my.py): RuntimeError: late"),
    "later NaN": ({"encode": "x = x * (float('nan') if start > 15 else 1)"}, "mine (my.py): reads back NaN"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_lane_that_fails_is_one_line_and_the_others_go_on(tmp_path, case):
    changes, said = WRONG[case]
    load_method_file(written(tmp_path, **changes))
    lanes = [Lane(label="own", method="mine"), Lane(label="kivi", method="per_token", knobs={"group_size": 8})]
    outcome = run_engine(tiny("llama"), prompt_ids(16), lanes, 4, ignore_eos=True)
    error = outcome.state("own").error
    assert error is not None and error.startswith(said) and "\n" not in error
    assert outcome.state("kivi").error is None and torch.isfinite(outcome.logits()[1][-1]).all()


def test_a_block_that_claims_fewer_bytes_is_refused(tmp_path):
    top = "class Block(Block):\n    @property\n    def nbytes(self):\n        return {'halves': 1}\n"
    load_method_file(written(tmp_path, top=top))
    with pytest.raises(MethodError, match=r"mine \(my.py\): claims 1 bytes for a block whose tensors take 2,560"):
        kvq_core.roundtrip(make("mine"), *tensors())


def test_the_files_hash_is_in_the_id_of_a_run(tmp_path):
    def id():
        return run_id(tiny("llama"), parse_spec({"prompt": "-", "lanes": [{"method": "mine"}]}), [1, 2])

    load_method_file(written(tmp_path))
    first = id()
    assert first == id()
    load_method_file(written(tmp_path, top="# a comment"))
    assert first != id()
    plain = ComparisonSpec(prompt="-", lanes=(Lane(method="kivi"),))
    assert run_id(tiny("llama"), plain, [1, 2]) == run_id(tiny("llama"), plain, [1, 2])


class Installed(EntryPoint):
    """An entry point of a package that is not really there."""

    def __init__(self, name, given):
        super().__init__(name, "somewhere:Thing", known.GROUP)
        vars(self).update(given=given, dist=SimpleNamespace(name="my-kvq", version="1.2"))

    def load(self):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def test_packages_offer_methods_and_broken_ones_cost_their_own_alone(tmp_path, monkeypatch):
    load_method_file(written(tmp_path))
    mine = methods()["mine"].__mro__[1]
    known.forget("mine")
    given = [Installed("mine", mine), Installed("broken", ImportError("no\nlibrary")), Installed("junk", 3)]
    monkeypatch.setattr(known, "entry_points", lambda group: given)
    monkeypatch.setattr(known._own, "asked", False)
    assert make("mine").data_hash(REF) == "my-kvq==1.2"
    assert origin_of(methods()["mine"]).words == "package my-kvq 1.2"
    assert failures()["broken"] == "package my-kvq 1.2: entry point 'broken': ImportError: no library"
    assert "is no Method" in failures()["junk"]
    with pytest.raises(SpecError, match="entry point 'broken': ImportError"):
        make("broken")
    with pytest.raises(SpecError, match="Unknown method 'mnie'. Did you mean 'mine'.*Not loaded: package my-kvq"):
        make("mnie")


def test_a_package_is_found_where_it_is_installed(tmp_path, monkeypatch):
    (tmp_path / "my_kvq.py").write_text(written(tmp_path).read_text())
    info = tmp_path / "my_kvq-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kvq\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[kvq.methods]\nanything = my_kvq\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(known._own, "asked", False)
    assert origin_of(methods()["mine"]).version == "my-kvq==0.3" and not failures()


def test_the_example_counts_what_its_page_says(tmp_path):
    (tmp_path / "one_bit.py").write_text(example("one_bit.py"))
    load_method_file(tmp_path / "one_bit.py")
    for dim in (64, 128):
        keys, values = tensors(dim=dim)
        found = kvq_core.roundtrip(make("one_bit"), keys, values)
        assert found.key_bits == found.value_bits == 1 + 16 / dim
        size = np.abs(keys.numpy()).mean(-1, keepdims=True).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(found.keys.numpy(), np.where(keys.numpy() > 0, size, -size))
