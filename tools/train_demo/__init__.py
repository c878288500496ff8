"""The code that made the demo model: `python -m tools.train_demo --out DIR`.

It is no part of the package: `chairlift.demo` holds what it made.
"""
