"""Opening the HTTPS of a few hosts, so that rules see requests and credentials can be added.

A session gets a certificate authority of its own, made when it starts and kept in memory. Its
certificate, never its key, goes into the container. The authority is good for the listed hosts
only: it says so itself, and programs that check certificates hold it to that.
"""

import datetime
import ipaddress
import os
import ssl
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runner.errors import ConfigurationError
from runner.policy.network import Host, HostPattern, NotAHost

VALID_FOR = datetime.timedelta(days=2)
"""Longer than any session is; a day more behind, for clocks that are wrong."""
_DAY = datetime.timedelta(days=1)
MAX_CONTEXTS = 64
"""Hosts whose certificates are kept at hand."""
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the authorities that they trust, where OpenSSL can't tell."""


class Interception:
    """The certificates of one session.

    Args:
        hosts: The hosts whose HTTPS is opened: names, or `*.name`.

    Raises:
        ConfigurationError: One of the hosts is no name.
    """

    def __init__(self, hosts: Iterable[str]):
        self._patterns = tuple(map(_pattern, hosts))
        self._authority_key = ec.generate_private_key(ec.SECP256R1())
        self._authority = self._make_authority()
        self._key = ec.generate_private_key(ec.SECP256R1())
        """Of all hosts' certificates: they all end in this process."""
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    def covers(self, host: Host) -> bool:
        """Whether connections to this host are opened."""
        return isinstance(host, str) and any(pattern.fits(host) for pattern in self._patterns)

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, in PEM."""
        return self._authority.public_bytes(serialization.Encoding.PEM)

    def bundle(self) -> bytes:
        """What programs in the container are to trust: what this host does, and the authority."""
        return trusted_roots() + self.certificate

    def context(self, host: str) -> ssl.SSLContext:
        """What the server end of a connection to this host needs."""
        found = self._contexts.get(host)
        if found is None:
            found = self._contexts[host] = self._make_context(host)
            if len(self._contexts) > MAX_CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(host)
        return found

    def _make_authority(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rousseau-runner session")])
        public = self._authority_key.public_key()
        names = [x509.DNSName(pattern.name or pattern.below) for pattern in self._patterns]
        nothing = [
            x509.IPAddress(ipaddress.ip_network("0.0.0.0/0")),
            x509.IPAddress(ipaddress.ip_network("::/0")),
        ]
        return (
            _dated(x509.CertificateBuilder())
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.NameConstraints(names, nothing), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._authority_key, hashes.SHA256())
        )

    def _make_context(self, host: str) -> ssl.SSLContext:
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._authority_key.public_key())
        certificate = (
            _dated(x509.CertificateBuilder())
            .subject_name(x509.Name([]))
            .issuer_name(self._authority.subject)
            .public_key(self._key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                critical=False,
            )
            .sign(self._authority_key, hashes.SHA256())
        )
        key = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        _load(context, key + certificate.public_bytes(serialization.Encoding.PEM))
        return context


def trusted_roots() -> bytes:
    """The authorities that this host trusts, in PEM; empty where they are not to be found."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    if found:
        return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode()
    for path in _BUNDLES:
        try:
            return Path(path).read_bytes()
        except OSError:
            continue
    return b""


def _pattern(text: str) -> HostPattern:
    try:
        pattern = HostPattern.read(text)
    except NotAHost as error:
        raise ConfigurationError(f"intercept: {error}") from None
    if not (pattern.name or pattern.below):
        raise ConfigurationError(f"intercept: {text!r} is neither a name nor *.name")
    return pattern


def _dated(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + VALID_FOR)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load key and certificate, for which OpenSSL wants a file: one that is in no directory."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
