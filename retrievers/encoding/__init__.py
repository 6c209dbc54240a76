"""The engines of encoders: ONNX Runtime, sentence-transformers, providers; and the model hub."""
