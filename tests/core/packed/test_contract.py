"""The contract as a command: every promise that is broken is found by its check, and every method here keeps all."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.methods import load_method_file, methods
from kvq_core.models.tiny import tiny
from kvq_core.packed import contract
from kvq_core.packed.contract import check_method
from tests.support.campaigns import whole
from tests.support.own_methods import example, forget_afterwards, written

LEARNED = {"commvq": "it needs data that is learned from a model"}


@pytest.fixture
def registry(monkeypatch):
    forget_afterwards(monkeypatch)


@pytest.fixture
def quick(monkeypatch):
    """One model is enough to find what is broken everywhere."""
    monkeypatch.setattr(contract, "HEADS", (64,))


def found(name):
    return {check.name: check for check in check_method(name)}


@pytest.mark.slow
@pytest.mark.long("combine")
@pytest.mark.parametrize("name", methods())
def test_every_method_here_keeps_the_contract(name, monkeypatch):
    """In a sample on the first of the models that it takes."""
    if not whole():
        taken = [size for size in contract.HEADS if methods()[name]().why_not(tiny(size).shape) is None]
        monkeypatch.setattr(contract, "HEADS", taken[:1])
    checks = found(name)
    assert {c.name: c.said for c in checks.values() if c.outcome == "FAIL"} == {}
    assert (checks["stores"].said if "stores" in checks else None) == LEARNED.get(name)


@pytest.mark.slow
def test_the_example_of_the_page_keeps_it_whole(registry, quick, tmp_path):
    (tmp_path / "one_bit.py").write_text(example("one_bit.py"))
    load_method_file(tmp_path / "one_bit.py")
    checks = list(check_method("one_bit"))
    assert [check.outcome for check in checks] == ["ok"] * len(checks) and len(checks) == 11


BROKEN = {
    "described": {"body": "__doc__ = None"},
    "frozen": {"body": "knob: list[int] = [1]"},
    "shapes": {"body": "def why_not(self, shape): return 'never'"},
    "fits": {"bits": 3},
    "engages": {"body": "def windows(self): return Window(recent=4000), Window(recent=4000)"},
    "reads its store": {
        "top": "COUNT = []",
        "decode": "COUNT.append(0); return block.tensors['halves'].float() * (1 + (len(COUNT) > 40))",
    },
    "same twice": {"encode": "x = x * torch.rand(1)"},
    "token by token": {"encode": "x = x - x.mean(-2, keepdim=True)"},
}


@pytest.mark.few(sample=2)
@pytest.mark.parametrize("broken", [pytest.param(n, marks=pytest.mark.slow if n == "engages" else ()) for n in BROKEN])
def test_what_is_broken_is_found_by_its_check(registry, quick, tmp_path, broken):
    load_method_file(written(tmp_path, **BROKEN[broken]))
    failed = [check for check in check_method("mine") if check.outcome == "FAIL"]
    assert broken in [check.name for check in failed], failed
    assert all(check.said and "\n" not in check.said for check in failed)


@pytest.mark.slow
def test_a_packed_form_that_reads_something_else_is_found(registry, quick, tmp_path):
    file = tmp_path / "one_bit.py"
    page = example("one_bit.py").replace("Packed.decoded(self, path)", "Packed.decoded(Other(), path)")
    other = "class Other(Signs):\n    def decode(self, block):\n        return super().decode(block) * 1.1\n\n\n"
    file.write_text(page.replace("class OneBit", other + "class OneBit"))
    load_method_file(file)
    checks = found("one_bit")
    assert checks["packed"].outcome == "FAIL" and "from the lane's" in checks["packed"].said
    assert [name for name, check in checks.items() if check.outcome == "FAIL"] == ["packed"]


@pytest.mark.slow
def test_what_declares_its_bits_is_not_said_to_be_counted(registry, quick, tmp_path):
    file = tmp_path / "f.py"
    file.write_text("import kvq_core\nkvq_core.from_function(lambda k, v: (k, v), bits=3, name='plain')\n")
    load_method_file(file)
    checks = found("plain")
    assert (checks["counts"].outcome, checks["counts"].said) == ("skip", "bits declared, not counted")
    assert checks["packed"].outcome == "skip" and checks["token by token"].outcome == "ok"


def test_a_method_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match="Did you mean 'kivi'"):
        list(check_method("kvi"))
