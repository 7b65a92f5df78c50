"""QAQ (arXiv 2403.04643): every token gets the bits its own range and attention call for.

Where the paper is in the code (its symbols; the code's names):

- Section 4.1, sigma of values from S_t, the attention a token gets (sigma_V; rows): ``tolerance`` (BitRule)
- Section 4.1, sigma of keys from ||Q||^2 (sigma_K; query_norms): ``tolerance`` (BitRule, query_norms)
- Section 4.1, B = ceil(log2(range / (2 sqrt(3) sigma))), range without outliers (extents): ``tolerance`` (BitRule)
- codes as midpoints of 2^B equal cells: ``pools`` (RaggedCodec.measure), kvq_kernels' midpoint_codes
- Section 4.2, outliers kept apart (alpha; outlier_fraction): ``pools`` (bounds)
- Section 4.2, the attention window (n; attention_window): ``tolerance`` (attention_rows)
- widths evaluated again after a step, from the original values: ``pools`` (RaggedCodec.observe)
- how units of mixed widths lie in memory, and how packed execution reads them: ``units``
- knobs, deviations from the paper, and the fit on the prompt: ``method``
"""

from kvq_core.methods.qaq.method import Qaq

__all__ = ["Qaq"]
