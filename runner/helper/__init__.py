"""The end of the stream that runs inside the container: standard library only.

Nothing here imports from the rest of the package, since this tree is all of it that
the container receives; the host imports `wire` from here, so that the protocol is
written once.
"""
