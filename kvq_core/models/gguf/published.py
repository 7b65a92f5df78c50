"""The published file that tests, claims and examples take for their second model."""

REPO = "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"  # Apache-2.0
NAME = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
TITLE = "Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)"
SIZE = 491_400_064  # bytes
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
PREFIX = "gguf:"  # of the ids of converted files; 16 digits of the file's sha256 follow
SECOND_MODEL = f"{PREFIX}{SHA256[:16]}"
