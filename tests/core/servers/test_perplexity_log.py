"""Logs of llama-perplexity, early and late, whole and broken, in the encodings that shells write."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.cli.main import main
from kvq_core.errors import SpecError
from kvq_core.servers.perplexity_log import LoggedRun, read_logs
from tests.support.campaigns import inputs
from tests.support.damage import damaged

# As tools/perplexity/perplexity.cpp of 050fc7f32 formats it, from the chunks' table to the same top.
LATE = """\
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1       7.0123 ±    1.4211       0.02101 ±    0.01213       0.02911 ±    0.00302     5.012 ±  0.588 %    92.157 ±  1.687 %
   2       6.8841 ±    0.9876       0.02543 ±    0.00911       0.03002 ±    0.00221     5.301 ±  0.402 %    91.765 ±  1.219 %

====== Perplexity statistics ======
Mean PPL(Q)                   :   6.884100 ±   0.987600
Mean PPL(base)                :   6.711200 ±   0.911100
Cor(ln(PPL(Q)), ln(PPL(base))):  99.12%
Mean ln(PPL(Q)/PPL(base))     :   0.025430 ±   0.009110

====== KL divergence statistics ======
Mean    KLD:   0.030020 ±   0.002210
Maximum KLD:   1.234567
99.9%   KLD:   0.812345
99.0%   KLD:   0.281234
Median  KLD:   0.010123
Minimum KLD:  -0.000003

====== Token probability statistics ======
Mean    Δp: -0.312 ± 0.012 %
Maximum Δp: 55.500%
RMS Δp    :  5.301 ± 0.402 %
Same top p: 91.765 ± 1.219 %
"""  # noqa: E501
# As examples/perplexity/perplexity.cpp formatted it before PR 7058: the same top is a share, in the table alone.
EARLY = """\
chunk        PPL          ln(PPL(Q)/PPL(base))          KL-Divergence           Same top
   1        5.1234       0.00310 ±    0.00210       0.00297 ±    0.00011    0.95686 ± 0.01274
   2        5.4321       0.00354 ±    0.00180       0.00347 ±    0.00009    0.96078 ± 0.00860

===== KL-divergence statistics
Average:   0.003467 ±  0.000090
Median :   0.001821
Maximum:   0.712345
KLD_99 :   0.023456
KLD_95 :   0.012345
Minimum:  -0.000012
KLD_01 :  -0.000001
"""
OF_LATE = LoggedRun("log", 0.03002, 0.281234, 1.234567, pytest.approx(0.91765))
OF_EARLY = LoggedRun("log", 0.003467, 0.023456, 0.712345, 0.96078)


def read(tmp_path: Path, text: str, encoding: str = "utf-8") -> list[LoggedRun]:
    (tmp_path / "log.txt").write_bytes(text.encode(encoding))
    return read_logs([tmp_path / "log.txt"])


@pytest.mark.parametrize(("text", "run"), [(LATE, OF_LATE), (EARLY, OF_EARLY)], ids=["late", "early"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    "form",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("Mean    KLD: ", "0.13.291.205 I \x1b[32mMean    KLD: \x1b[0m"),
        lambda text: "".join(f"{line} \n" for line in text.splitlines()),
    ],
    ids=["plain", "Windows", "times and colours", "blanks"],
)
def test_early_and_late_logs_are_read(tmp_path, text: str, run: LoggedRun, encoding: str, form) -> None:
    if encoding == "cp1252":
        text = text.replace("Δ", "d")
    assert read(tmp_path, form(text), encoding) == [run]


def test_a_decimal_comma_is_no_end_of_a_number(tmp_path) -> None:
    [run] = read(tmp_path, LATE.replace(".", ",").replace("99,0%", "99.0%"))
    assert run == OF_LATE


@pytest.mark.parametrize("word", ["nan", "-nan", "-nan(ind)", "inf", "-inf", "1.#QNAN", "NaN"])
def test_what_is_no_number_is_a_result(tmp_path, capsys, word: str) -> None:
    """The run broke, and its row says so; the other log's row is there."""
    broken, whole = tmp_path / "q4_0.txt", tmp_path / "q8_0.txt"
    broken.write_text(LATE.replace("  0.030020 ±   0.002210", f"{word:>10} ± {word:>10}").replace("1.234567", word))
    whole.write_text(LATE)
    assert main(["engine", "--log", str(broken), "--log", str(whole)]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert f"its mean KLD is {word}: the run broke" in first and "0.281" in first and "0.03 " in second
    assert main(["engine", "--json", "--log", str(broken)]) == 0
    [told] = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["logs"]
    assert told["kld_mean"] is None and told["kld_max"] is None and told["kld_p99"] == 0.281234


def test_several_results_are_rows_with_their_places(tmp_path) -> None:
    assert [(run.name, run.kld_mean) for run in read(tmp_path, f"{LATE}\n{EARLY}")] == [
        ("log, line 12", 0.03002),
        ("log, line 29", 0.003467),
    ]
    for folder in ("q4_0", "q8_0"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.txt").write_text(LATE)
    files = [tmp_path / folder / "log.txt" for folder in ("q4_0", "q8_0")]
    assert [run.name for run in read_logs(files)] == [str(file) for file in files]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "has no line Mean KLD; give what a whole run of llama-perplexity --kl-divergence printed"),
        ("", "has no line Mean KLD"),
        (LATE.partition("\n\n")[0], "ends after chunk 2, before its statistics"),
        (EARLY.partition("\n\n")[0], "ends after chunk 2, before its statistics"),
    ],
)
def test_a_log_without_a_result_is_refused_by_its_reason(tmp_path, text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        read(tmp_path, text)


@inputs(20)
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda text, encoding, seed: damaged(text.encode(encoding), random.Random(seed)),
        st.sampled_from([LATE, EARLY, LATE + EARLY]),
        st.sampled_from(["utf-8", "utf-16", "utf-16-le"]),
        st.integers(0, 2**32),
    )
)
def test_any_log_is_read_or_refused_in_one_line(tmp_path_factory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("logs") / "log.txt"
    file.write_bytes(data)
    try:
        assert all(run.kld_mean is not None or run.broke for run in read_logs([file]))
    except SpecError as refused:
        assert str(file) in str(refused)
