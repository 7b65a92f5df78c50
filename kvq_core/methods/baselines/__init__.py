"""Baselines that papers compare with, each as its paper, or the code that came with it, has it; one module a method.

Imports what methods import. Start at any: they do not know one another.
"""
