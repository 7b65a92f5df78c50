"""CommVQ (arXiv 2506.18879): additive codebooks that commute with RoPE for keys, learned binary digits for values.

Where the paper is in the code (its symbols; the code's names):

- Eqs. 7, 8, 17 and 18, levels that commute with RoPE (C_K; theta), and residual stages of them (R; stages), whose
  mean width is Eq. 21: ``codec`` (KeyCodec), kvq_kernels' rope_codebook
- Eqs. 16 and 19, scores from the codebook without turning keys: ``codec`` (CodebookKeys)
- Section 4.1 and Eq. 9, values as binary digits of a learned encoder, read back by a linear codebook: ``codec``
  (ValueCodec), kvq_core.codebooks.encoder; Eq. 22, weights times digits first: ``codec`` (CodebookValues)
- Section 4.2, Algorithm 1 and Appendix A.2, EM of the key codebooks (Eqs. 20 and 33), soft assignment (Eq. 34) and
  annealing (Eq. 35): kvq_core.training.em, kvq_core.training.keys
- training of the value encoder: kvq_core.training.values
- which codebooks belong to a model, and their files: kvq_core.codebooks
- knobs, deviations from the paper, and the fit on the prompt: ``method``
"""

from kvq_core.methods.commvq.method import CommVQ

__all__ = ["CommVQ"]
