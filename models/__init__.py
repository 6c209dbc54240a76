"""Chat models: any OpenAI-compatible endpoint, or the embedded local one.

`hopgate.models.chat` turns a name into a model and makes every call to one;
`hopgate.models.local` serves the embedded SmolLM2 on loopback.
"""
