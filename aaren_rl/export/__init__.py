"""The command export: a trained policy as one ONNX file."""
