"""The router: a classifier that decides how many retrievals a question needs.

- `router` routes questions at any α; `checkpoint` is the folder of weights it loads.
- `profiles` picks the weights for a model, `doubts` flags questions outside the training data, and
  `saved_alphas` reads the α settings that `hopgate calibrate --save` stored.
- `training` fine-tunes a router on `labels`, and `adding` adds one more LLM to a trained router.

Import the module you need: routing loads no training code.
"""
