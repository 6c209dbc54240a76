"""Evaluations: everything that measures gates, routers and answers.

`runner` asks a model many questions and resumes, with a `journal` on disk and a part of the graph
from `harness`. `labelling`, `benchmarks` (RetrievalQA and `qa`), `paraphrases` and the calibration
of `gates` build on it. `replay` evaluates routers on recorded outcomes without a model, for
`sweep` and `calibration`. `datasets` reads questions, `matching` and `scores` are the metrics, and
`report`, `qa_report` and the plots show them.
"""
