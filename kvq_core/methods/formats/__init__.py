"""Deployed formats: caches that engines ship, one module a format or a family of one arithmetic.

Imports what methods import. Start at ``tokenwise``, what nearly all of them are, then a format of it.
"""

_LATENT = "it stores the latent cache of DeepSeek's attention (MLA), which no model here has"
_OCTAVE = (
    "it takes heads of 256 channels of which 64 are rotated, on AMD GPUs, and its table of levels is not published"
)
# what engines call formats that are not built, and why
NOT_BUILT = {
    "fp8_ds_mla": _LATENT,
    "nvfp4_ds_mla": _LATENT,
    "octave_k3v3": _OCTAVE,
    "octave_k3v3_compact": _OCTAVE,
    "octave_k3v4": _OCTAVE,
    "fp8_inc": "it is fp8 as Intel's plug-in writes it; take fp8",
}
