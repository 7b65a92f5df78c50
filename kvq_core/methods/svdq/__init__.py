"""SVDq (arXiv 2502.15304): keys in the basis of their own singular vectors, strong channels with more bits.

Where the paper is in the code (its symbols; the code's names):

- Eqs. 1 and 4, K - mean = U D V^T and the latent channels (K - mean) V: ``latent`` (singular_vectors, LatentCodec)
- Eqs. 2 and 3, the quantizer of a latent channel over all tokens: ``latent`` (LatentCodec._quantize)
- Theorem 4.1 and Lemma 4.1, the error of a latent channel at each width (lambda; errors): ``method`` (expected_errors,
  best_schedule)
- Eq. 6, the mean width of a schedule (b_i; schedule): ``method``
- Algorithm 1, eighths of the channels with their own widths: ``method`` (GROUPS, NAMED)
- "+V4", values at 4 bits per token: ``method`` (fit), codecs.groups
- Section 5.2, sparsity as ShadowKV selects (chunks, landmarks, outlier chunks): ``selection`` (Selector)
- keys before RoPE are read back through the basis and turned: ``latent`` (LatentRead for packed execution)
- knobs, deviations from the paper, and the fit on the prompt: ``method``
"""

from kvq_core.methods.svdq.method import Svdq

__all__ = ["Svdq"]
