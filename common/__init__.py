"""What every other package stands on: files, the process-wide cache, the names of the strategies.

Nothing in here imports another hopgate package.
"""
