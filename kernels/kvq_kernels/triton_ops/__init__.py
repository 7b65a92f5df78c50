"""Triton kernels. Imported by the operations when they run on a GPU, so that nothing else needs triton.

Names that end in ``_kernel`` are launched, the others are called from kernels. Addresses are int64: a cache of 131,072
tokens with many heads and rows passes 2^31 elements. bfloat16 is converted right after loading, because Triton's
interpreter computes wrongly in it.
"""
