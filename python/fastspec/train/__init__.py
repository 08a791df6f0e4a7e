"""Training drafters: `python -m fastspec train`. Offline; needs the extra [train] (torch, transformers, safetensors).

Nothing here runs while the engine decodes, and `import fastspec` does not import it.
"""
