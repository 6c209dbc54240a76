"""What the other packages share: files, the cache, threads, workers, networks, strategy names.

It imports no other hopgate package.
"""
