"""Parts of tools/bench_tree_attention.py: the problem, our kernel, and what it is compared with."""
