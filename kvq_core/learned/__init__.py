"""Codebooks as data: their files, finding the right one, and the value encoder they hold. Training is in codebooks."""
