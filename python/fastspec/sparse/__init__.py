"""Offline tools of sparse verification: the profile of a (target, drafter) pair, and what selectors cost in quality.

Everything needs the extra [train]. One definition of every signal and of the selection (`signals.py`), which is the
engine's; published forms of other methods live in `published.py` and are for comparison only.
"""
