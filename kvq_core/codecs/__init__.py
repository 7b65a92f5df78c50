"""How one tensor (the keys or the values) of a lane is held: blocks, codecs, windows and the packed stream.

Imports the kernels' plain operations; knows no method. Start at ``codec`` (the contract), then ``stream``.
"""
