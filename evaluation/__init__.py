"""Evaluations: everything that measures gates, routers and answers, and learning from use.

`measuring` asks a model many questions and resumes (`runner`, with a `journal` on disk and the
graph of `harness`) for the `benchmarks` and the thresholds of `gates`; `replay` evaluates routers
on recorded outcomes without a model, for `sweep` and `calibration`. `learning` makes labels, draws
users' questions, and trains and promotes candidates. `reports` shows results.
"""
