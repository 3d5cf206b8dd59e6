"""The way out: connections of a session's programs, made by the host and judged one by one.

No container has a network. What its programs want to connect to comes through the stream as
tunnels, and each of them is served here. Import the modules: the package itself loads nothing.

    access        what tools of the host see of it
    addresses     which addresses may be dialled
    dial          a name, resolved once and checked, and a connection to it
    streams       bytes both ways, TLS over them, carrying them on
    hello         the name that a TLS client asks for
    exchange      HTTP/1.1 on a stream
    credentials   which request gets which secret
    interception  opening the HTTPS of a few hosts
    way           what the protocols may ask of a leash
    proxy         SOCKS 5, CONNECT and plain HTTP, as programs in the container speak them
    fetching      pages for tools of the host
    leash         the one way out of a session: judged, limited, recorded
    leashes       a leash for each session, made as the settings say
"""
