"""Adapters: the runner behind the interfaces that agent frameworks have.

Each module here translates for one framework and does nothing else: what a call is, whether it
may run and what is recorded of it is the same as for any other caller. A module imports its
framework, which is an optional extra of this package; nothing else of the runner imports any of
them.
"""
