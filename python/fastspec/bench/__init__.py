"""Benchmarks from Python: `python -m fastspec.bench`. Needs the extra [bench] where transformers is compared."""
