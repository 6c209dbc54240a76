"""Shared by the other packages: files, the cache, threads, networks, strategy names.

It imports no other hopgate package.
"""
