"""The place Verify, on private instances alone: a server asked beside its baseline, and what its cache costs.

Imports servers, record, settings, html, panels, service, and of study the card of prompts. Start at ``place``;
``result`` draws a verification that is kept.
"""
