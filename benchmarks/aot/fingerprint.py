"""A hash of what decides how fast the kernels are: results of another are not results of these."""

import hashlib
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "kvq_kernels"


def kernels_fingerprint(folder: Path = KERNELS) -> str:
    """Of the names and bytes of all sources there."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]
