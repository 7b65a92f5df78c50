"""Compile every kernel for GPUs this machine does not have, from the launches the operations really make."""

import inspect
import pkgutil
import re
import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from kvq_kernels import launch
from kvq_kernels.attention import decode_attention
from kvq_kernels.commuted import codebook_scores, codebook_values
from kvq_kernels.gemv import packed_scores, packed_values
from kvq_kernels.grouped import BITS, MODES, Grid, quantize_pack, unpack_dequantize
from kvq_kernels.latent import LatentKeys, latent_scores
from kvq_kernels.mixed import MixedTokens, mixed_scores, mixed_values
from kvq_kernels.rotation import Turn
from kvq_kernels.squat import squat_quantize
from kvq_kernels.store import Layout, Store

HEADS, DIM, TOKENS = 8, 128, 512  # the shapes of Llama-3.1-8B
TURN = Turn(torch.zeros(TOKENS, DIM // 2), torch.zeros(TOKENS, DIM // 2))


def kernels() -> dict[str, object]:
    """Every function of kvq_kernels.triton_ops that Triton compiles, helpers included, by name."""
    import triton
    from kvq_kernels import triton_ops

    found = {}
    for module in pkgutil.iter_modules(triton_ops.__path__):
        members = vars(import_module(f"kvq_kernels.triton_ops.{module.name}"))
        found |= {name: f for name, f in members.items() if isinstance(f, triton.runtime.jit.JITFunction)}
    return found


def called_by_kernels(functions: dict[str, object]) -> set[str]:
    """Names of those that other compiled functions call: no launch of their own compiles them."""
    sources = {name: inspect.getsource(f.fn) for name, f in functions.items()}
    return {
        name
        for name in functions
        if any(re.search(rf"\b{name}\(", text) for other, text in sources.items() if other != name)
    }


def groups(grid: Grid, axis: str):
    return quantize_pack(torch.zeros(HEADS, TOKENS, DIM), grid, axis, "torch")


def grouped_launches() -> None:
    """InnerQ's hybrid groups for the products that reduce over a group, KIVI's for the others, both ways of InnerQ's
    Tables 3 and 4, and 3 bits, whose codes cannot stay in their words."""
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    hybrid = Grid(2, 32, "hybrid", torch.float32)
    for grid, axes in (
        (hybrid, ("channels", "tokens")),
        (Grid(2), ("channels", "tokens")),
        (Grid(3, 128), ("tokens",)),
    ):
        for axis in axes:
            quantize_pack(torch.zeros(HEADS, TOKENS, DIM, dtype=torch.float16), grid, axis, "triton")
    unpack_dequantize(groups(hybrid, "tokens"), hybrid, "tokens", TOKENS, "triton")
    inner, outer = ("channels", "tokens"), ("tokens", "channels")
    signed = Grid(2, 32, "symmetric")
    kinds = ((hybrid, inner), (Grid(2), outer), (signed, inner), (signed, outer), (Grid(3), inner), (Grid(3), outer))
    for grid, (key_axis, value_axis) in kinds:
        packed_scores(q, groups(grid, key_axis), grid, key_axis, TOKENS, "triton")
        packed_values(p, groups(grid, value_axis), grid, value_axis, DIM, "triton")
    packed_scores(q, groups(Grid(2), "tokens"), Grid(2), "tokens", TOKENS, "triton", turn=TURN)


def large_group_launches() -> None:
    """Groups of 128, which are read in pieces where their codes are taken out of their words."""
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    packed_values(p, groups(Grid(4, 128), "channels"), Grid(4, 128), "channels", DIM, "triton")
    for bits in (2, 3):
        grid = Grid(bits, 128, "hybrid", torch.float32)
        packed_scores(q, groups(grid, "channels"), grid, "channels", TOKENS, "triton")
        packed_values(p, groups(grid, "tokens"), grid, "tokens", DIM, "triton")


def attention_launches() -> None:
    kivi = Layout(Grid(2), "tokens", 0, 0, 128), Layout(Grid(2), "channels", 0, 128, 1)
    wide = Grid(2, 32, "hybrid", torch.float32)
    innerq = Layout(wide, "channels", 32, 96, 1), Layout(wide, "tokens", 32, 96, 32)
    large = Layout(Grid(2, 128), "tokens", 0, 0, 128), Layout(Grid(2, 128), "channels", 0, 128, 1)
    spread = Layout(Grid(8), "tokens", 0, 0, 128), Layout(Grid(3), "channels", 0, 128, 1)
    for layouts in (kivi, innerq, large, spread):
        x = torch.zeros(1, HEADS, 700, DIM)
        norms = torch.ones(1, HEADS, 1, DIM).half() if layouts[0].sinks else None
        stores = [Store.empty(x, layout, path="torch") for layout in layouts]
        stores[0].norms = norms
        for store in stores:
            store.fill(x)
            store.append(x[..., :1, :])
        decode_attention(torch.zeros(1, 4 * HEADS, 1, DIM, dtype=torch.float16), *stores, 0.1, "triton")


def method_launches() -> None:
    updates = (torch.zeros(HEADS, DIM // 2, DIM // 2),)
    squat_quantize(torch.zeros(HEADS, TOKENS, DIM), updates, DIM // 2, Grid(2), "triton")
    q, p = torch.zeros(HEADS, 4, DIM, dtype=torch.float16), torch.zeros(HEADS, 4, TOKENS, dtype=torch.float16)
    kept = 64
    meta = torch.zeros(1, kept).half()
    basis, mean = torch.zeros(1, HEADS * DIM, kept).half(), torch.zeros(1, HEADS * DIM).half()
    codes = torch.zeros(1, kept, TOKENS, dtype=torch.uint8)
    latent = LatentKeys.of(codes, [4] * kept, meta, meta, basis, mean)
    latent_scores(q, latent, TURN, TOKENS, "triton")
    theta = torch.zeros(HEADS, 1, 11, 64, DIM // 2, 2)
    stream = torch.zeros(HEADS, TOKENS * 11 * 2 * 6 // 8, dtype=torch.uint8)
    codebook_scores(q, theta, stream, torch.zeros(TOKENS).half(), TURN, "triton")
    digits, book = torch.zeros(TOKENS, 128, dtype=torch.uint8), torch.zeros(1024, HEADS * DIM)
    codebook_values(p, digits, torch.zeros(TOKENS), book, torch.zeros(HEADS * DIM), "triton")
    unit, outliers = torch.zeros(TOKENS, 1, HEADS), torch.zeros(TOKENS, 1, HEADS, 2)
    codes = torch.zeros(TOKENS, 1, HEADS, DIM, dtype=torch.uint8)
    mixed = MixedTokens.of(codes, unit.int() + 3, unit.half(), unit.half(), outliers.half(), outliers)
    mixed_scores(q[None], mixed, "triton")
    mixed_values(p[None], mixed, DIM, "triton")


def smallest_grouped_launches() -> None:
    """Every width, and every kind of grid in both directions."""
    q, p = torch.zeros(1, 1, 32).half(), torch.zeros(1, 1, 1).half()
    for i, bits in enumerate(BITS):
        grid = Grid(bits, 32, MODES[i % len(MODES)], torch.float32 if i % 2 else torch.float16)
        for axis in ("channels", "tokens"):
            x = torch.zeros(1, 1, 32).half()
            packed, count = quantize_pack(x, grid, axis, "torch"), 1 if axis == "tokens" else 32
            quantize_pack(x, grid, axis, "triton")
            unpack_dequantize(packed, grid, axis, count, "triton")
            packed_scores(q, packed, grid, axis, 1, "triton")
            packed_values(p, packed, grid, axis, 32, "triton")
        layouts = Layout(grid, "channels", 1, 0, 1), Layout(grid, "tokens", 1, 1, 32)
        stores = [Store.empty(x[None], layout, path="torch") for layout in layouts]
        for store in stores:
            store.fill(x[None])
        decode_attention(q[None], *stores, 0.1, "triton")


def smallest_method_launches(dtype: torch.dtype) -> None:
    q, p, turn = torch.zeros(1, 1, 32, dtype=dtype), torch.zeros(1, 1, 1, dtype=dtype), Turn(*torch.zeros(2, 1, 16))
    packed_scores(q, quantize_pack(q, Grid(2), "tokens", "torch"), Grid(2), "tokens", 1, "triton", turn=turn)
    squat_quantize(torch.zeros(1, 1, 32), (), 32, Grid(2), "triton")
    squat_quantize(torch.zeros(1, 1, 32), (torch.zeros(1, 16, 16),), 16, Grid(3), "triton")
    one, meta = torch.zeros(1, 1, 1, dtype=torch.uint8), torch.zeros(1, 1).half()
    latent = LatentKeys.of(one, [1], meta, meta, torch.zeros(1, 32, 1).half(), torch.zeros(1, 32).half())
    latent_scores(q, latent, turn, 1, "triton")
    codebook_scores(q, torch.zeros(1, 1, 1, 2, 16, 2), one[0], torch.zeros(1).half(), turn, "triton")
    codebook_values(p, one[0], torch.zeros(1), torch.zeros(1, 32), torch.zeros(32), "triton")
    unit, none = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, 0)
    mixed = MixedTokens.of(q[None].to(torch.uint8), unit, unit.half(), unit.half(), none.half(), none)
    mixed_scores(q[None], mixed, "triton")
    mixed_values(p[None], mixed, 32, "triton")


def launches() -> list[launch.LaunchRecord]:
    """Launches of every kernel in the forms that matter, recorded and not run; equal ones once."""
    with launch.record_launches() as found:
        for make in (grouped_launches, large_group_launches, attention_launches, method_launches):
            make()
    return _different(found)


def smallest_launches() -> list[launch.LaunchRecord]:
    """One token, head, query and row: a GPU's launches make constants of all the sizes that are 1."""
    with launch.record_launches() as found:
        smallest_grouped_launches()
        for dtype in (torch.float16, torch.float32):
            smallest_method_launches(dtype)
    return _different(found)


def _different(found: list[launch.LaunchRecord]) -> list[launch.LaunchRecord]:
    """Launches that differ in their constants, among which are sizes and strides of 1."""

    def form(entry: launch.LaunchRecord) -> str:
        ones = [name for name, value in entry.arguments.items() if isinstance(value, int) and value == 1]
        return f"{entry.kernel.__name__} {entry.constants} {ones}"

    return list({form(entry): entry for entry in found}.values())


@dataclass(frozen=True)
class Compiled:
    """What a compiled kernel needs: shared memory a program and stack a thread in bytes, registers a thread.

    ``work``: instructions of a thread in the longest loop, or of a kernel that quantizes, which has none, in all of it;
    for each element that the thread has of the tile of one turn. 0 where ``elements`` does not know the tile, or nobody
    asked.
    """

    shared: int
    registers: int
    stack: int
    work: float


def compile_for(recorded: launch.LaunchRecord, capability: int, folder: Path, work: bool = True) -> Compiled:
    """Compile one launch for a compute capability such as 80 or 90 and read what the assembler made of it. Its
    instructions are read only for its ``work``, since that takes as long as compiling some."""
    import triton
    from triton.backends.compiler import GPUTarget

    options = {"num_warps": recorded.warps, "num_stages": recorded.stages}
    made = triton.compile(_source(recorded), target=GPUTarget("cuda", capability, 32), options=options)
    cubin = folder / f"{recorded.kernel.__name__}-{capability}.cubin"
    cubin.write_bytes(made.asm["cubin"])
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

    def shown(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", shown(tools / "cuobjdump", "--dump-resource-usage", cubin)))
    stack = int(numbers["STACK"]) + int(numbers["LOCAL"])
    per_thread = elements(recorded.constants) / (32 * recorded.warps)
    count = _work(shown(tools / "nvdisasm", "-c", cubin), "PART" in recorded.constants) if work and per_thread else 0
    return Compiled(made.metadata.shared, int(numbers["REG"]), stack, round(count / (per_thread or 1), 2))


def elements(constants: dict[str, Any]) -> int:
    """Elements of the cache that one turn of a kernel's main loop reads, keys and values in decode attention; or that a
    program quantizes."""
    if "PART" in constants:
        return constants["R"] * constants["N"]
    if "K_BITS" in constants:
        return 2 * (constants["PLACED"] or constants["BT"]) * constants["DP"]
    return constants["BT"] * constants["DP"] if "BITS" in constants and "BT" in constants else 0


def _work(assembly: str, whole: bool) -> int:
    """Instructions, of the ``whole`` or between a label and the last jump back to it, of the loop with the most."""
    labels: dict[str, int] = {}
    count = longest = 0
    for line in assembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = count
        elif re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+\S", line):
            count += 1
            jump = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
            if jump and jump[1] in labels:
                longest = max(longest, count - labels[jump[1]])
    return count if whole else longest


def parse_for(recorded: launch.LaunchRecord, capability: int) -> str:
    """Only what Triton's front end makes of one launch, which is where code that only its interpreter takes fails."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget("cuda", capability, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({"num_warps": recorded.warps, "num_stages": recorded.stages})
    ir.load_dialects(context)
    backend.load_dialects(context)
    calls = backend.get_codegen_implementation(options)
    return str(_source(recorded).make_ir(target, options, calls, backend.get_module_map(), context))


def _source(recorded: launch.LaunchRecord) -> Any:
    """The kernel as a launch on a GPU specialises it: None and the integer 1 are constants, but for sizes that it takes
    as they come."""
    from triton.compiler import ASTSource

    names = recorded.kernel.arg_names
    plain = {param.name for param in recorded.kernel.params if param.do_not_specialize}
    arguments = {
        name: value
        for name, value in recorded.arguments.items()
        if value is not None and (name in plain or not (isinstance(value, int) and value == 1))
    }
    found = {name: _type(arguments[name]) if name in arguments else ("constexpr", False) for name in names}
    found |= dict.fromkeys(plain, ("i32", False))
    signature = {name: kind for name, (kind, _) in found.items()}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if found[name][1]}
    constants = {n: v for n, v in {**recorded.arguments, **recorded.constants}.items() if n not in arguments}
    return ASTSource(recorded.kernel, signature, {(names.index(n),): v for n, v in constants.items()}, attributes)


def _type(value: object) -> tuple[str, bool]:
    """Triton's name of an argument's type, and whether it is specialised as divisible by 16."""
    if isinstance(value, torch.Tensor):
        names = {torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8", torch.int32: "i32"}
        return "*" + (names | {torch.int64: "i64", torch.int16: "i16"})[value.dtype], True
    return ("fp32", False) if isinstance(value, float) else ("i32", value % 16 == 0)
