"""Learned data that methods read: codebook files, the look-up by model, and the encoder's tensors.

Imports settings and machine; how codebooks are trained is the training room's. Start at ``files``.
"""
