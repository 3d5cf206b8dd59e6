"""The tools as a server of the Model Context Protocol, revisions 2025-11-25 and 2026-07-28.

    server     requests into calls, results into answers     tools    what clients are told
    held       which session a client's calls run in         asking   questions to people
    stdio, http   the transports                             messages  one reading of what comes
    records    the read-only server of past sessions

The protocol itself is the official SDK's; every call is one of `AsyncSession.call`, so that
schema, policy and record are the same as everywhere. Import the modules: this package imports
nothing, since the SDK takes its time.
"""
