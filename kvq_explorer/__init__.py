"""The command ``kvq-explorer``: the page where nothing is asked, else the command line.

A wheel has the page here as well, ``app``, ``ui`` and ``presets``, which lie beside this folder in a checkout: see
setup.py. It imports ``kvq_core.cli`` and ``app``. Start at ``__main__``.
"""
