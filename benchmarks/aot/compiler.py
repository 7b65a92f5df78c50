"""Compile recorded launches for GPUs this machine does not have, and read what the assembler made of them.

What was compiled once is kept by a hash of the kernel's source, its arguments, Triton and its settings, in
``KVQ_HOME/kernels``: an unchanged kernel is not compiled twice. Needs Triton, whose wheels bring ptxas, cuobjdump and
nvdisasm, and no GPU.
"""

import gzip
import hashlib
import json
import os
import re
import subprocess
import tempfile
import warnings
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from kvq_kernels.blocks import CELL, PART
from kvq_kernels.launch import LaunchRecord

from benchmarks.aot.assembly import Counts, counted, spills

# Triton 3.9 says with every process that a setting, which it leaves as it was, will once be another.
warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION is unset")


@dataclass(frozen=True)
class Compiled:
    """What a compiled kernel needs: shared memory a program and stack a thread in bytes, registers a thread.

    ``loop``: what a thread does in one turn of the main loop, or of a kernel that quantizes, which has none, in all of
    it. ``work``: instructions of that for each ``elements`` (of a thread and turn); 0 where they are not known.
    ``spills``: reads and writes of local memory, anywhere. ``outside``: instructions before and after the loop.
    ``exchanged``: of Triton's code the lines in which threads exchange blocks of 8 x 8, and the layouts of products.
    """

    shared: int
    registers: int
    stack: int
    work: float
    elements: float = 0
    spills: int = 0
    outside: int = 0
    loop: Counts = field(default_factory=Counts)
    exchanged: str = ""


def compile_for(recorded: LaunchRecord, capability: int, tile: int | None = None) -> Compiled:
    """Compile one launch for a compute capability such as 80 or 90, or read what was made of it before. ``tile``: how
    many elements a program has in a turn, where ``elements`` cannot tell."""
    shown = _assembled(recorded, capability)
    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", shown["usage"]))
    tile = elements(recorded.constants) if tile is None else tile
    each = tile / (32 * recorded.how.warps)
    loop, whole = (counted(shown["assembly"], all_of_it) for all_of_it in ("PART" in recorded.constants, True))
    return Compiled(
        shared=int(shown["shared"]),
        registers=int(numbers["REG"]),
        stack=int(numbers["STACK"]) + int(numbers["LOCAL"]),
        work=round(loop.instructions / each, 2) if each else 0,
        elements=each,
        spills=spills(shown["assembly"]),
        outside=whole.instructions - loop.instructions,
        loop=loop,
        exchanged=shown.get("exchanged", ""),
    )


def elements(constants: dict[str, Any]) -> int:
    """Elements of the cache that one turn of a kernel's main loop reads, keys and values in decode attention; or that a
    program quantizes."""
    if "PART" in constants:
        return constants["R"] * constants["N"]
    if "K_BITS" in constants:
        return 2 * constants.get("PARTS", 1) * PART * CELL * constants["C"]
    return constants["BT"] * constants["DP"] if "BITS" in constants and "BT" in constants else 0


def kept_in() -> Path:
    """The folder of what was compiled."""
    return Path(os.environ.get("KVQ_HOME") or "~/.cache/kvq-explorer").expanduser() / "kernels"


def _assembled(recorded: LaunchRecord, capability: int) -> dict[str, str]:
    """What the assembler's own tools tell: ``usage`` of resources, ``assembly``, and bytes of ``shared`` memory; and
    what of Triton's code ``exchanged`` is."""
    file = kept_in() / f"{recorded.kernel.__name__}-{_mark(recorded, capability)}.json.gz"
    if file.is_file():
        return json.loads(gzip.decompress(file.read_bytes()))
    shown = _compile(recorded, capability)
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(f".{os.getpid()}")  # of this process: others may compile the same
    aside.write_bytes(gzip.compress(json.dumps(shown).encode(), mtime=0))
    aside.rename(file)
    return shown


def _mark(recorded: LaunchRecord, capability: int) -> str:
    """Of everything that decides what is made of a launch."""
    import triton

    source = _source(recorded)
    decides = (source.hash(), triton.__version__, capability, recorded.how.options)
    return hashlib.sha256(repr(decides).encode()).hexdigest()[:24]


def _compile(recorded: LaunchRecord, capability: int) -> dict[str, str]:
    import triton
    from triton.backends.compiler import GPUTarget

    made = triton.compile(_source(recorded), target=GPUTarget("cuda", capability, 32), options=recorded.how.options)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(made.asm["cubin"])
        cubin.flush()

        def shown(tool: str, option: str) -> str:
            command = [tools / tool, option, cubin.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage, assembly = shown("cuobjdump", "--dump-resource-usage"), shown("nvdisasm", "-c")
    exchanged = "\n".join(line for line in made.asm["ttgir"].splitlines() if "movmatrix" in line or line[:4] == "#mma")
    return {"usage": usage, "assembly": assembly, "shared": str(made.metadata.shared), "exchanged": exchanged}


def parse_for(recorded: LaunchRecord, capability: int) -> str:
    """Only what Triton's front end makes of one launch, which is where code that only its interpreter takes fails."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget("cuda", capability, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options(recorded.how.options)
    ir.load_dialects(context)
    backend.load_dialects(context)
    calls = backend.get_codegen_implementation(options)
    source, rest = _source(recorded), (options, calls, backend.get_module_map(), context)
    targeted = "target" in signature(source.make_ir).parameters  # not with Triton 3.4
    return str(source.make_ir(target, *rest) if targeted else source.make_ir(*rest))


def _source(recorded: LaunchRecord) -> Any:
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
    kinds = {name: kind for name, (kind, _) in found.items()}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if found[name][1]}
    constants = {n: v for n, v in {**recorded.arguments, **recorded.constants}.items() if n not in arguments}
    return ASTSource(recorded.kernel, kinds, {(names.index(n),): v for n, v in constants.items()}, attributes)


def _type(value: object) -> tuple[str, bool]:
    """Triton's name of an argument's type, and whether it is specialised as divisible by 16."""
    if isinstance(value, torch.Tensor):
        names = {torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8", torch.int32: "i32"}
        return "*" + (names | {torch.int64: "i64", torch.int16: "i16"})[value.dtype], True
    return ("fp32", False) if isinstance(value, float) else ("i32", value % 16 == 0)
