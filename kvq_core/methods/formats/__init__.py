"""Deployed formats: caches that engines ship, one module a format or a family of one arithmetic.

Imports what methods import. Start at ``tokenwise``, what nearly all of them are, then a format of it.
"""
