"""CommVQ (arXiv 2506.18879): additive codebooks that commute with RoPE for keys, learned binary digits for values.

Where the paper is in the code (its symbols; the code's names):

- Sections 4.1 and 4.2, Eqs. 10 to 19, residual stages of levels that commute with RoPE (C_K; theta): ``codec``
  (KeyCodec), kvq_kernels' rope_codebook
- Eqs. 16 and 19, scores from the codebook without turning keys: ``codec`` (CodebookKeys)
- values as binary digits of a learned encoder, read back by a linear codebook: ``codec`` (ValueCodec, CodebookValues),
  kvq_core.codebooks.encoder
- EM of the key codebooks, soft assignment and annealing: kvq_core.training.em, kvq_core.training.keys
- training of the value encoder: kvq_core.training.values
- which codebooks belong to a model, and their files: kvq_core.codebooks
- knobs, deviations from the paper, and the fit on the prompt: ``method``
"""

from kvq_core.methods.commvq.method import CommVQ

__all__ = ["CommVQ"]
