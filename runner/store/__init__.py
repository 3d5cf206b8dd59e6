"""What happened, on disk: sessions, calls, and the audit chain, in one SQLite file.

    database   a private file that several processes use: permissions, transactions, errors
    schema     its tables, and how older files get them
    rows       records as rows: texts of bounded length, digests, what the audit says
    ledger     the file while it is open, and the one way to append to the chain
    approvals, connections, jobs, search     a table's changes and questions each
    store      Store: sessions and calls, and all of the above

All the SQL there is stands here. What a row of the chain looks like and
how it is hashed is `runner.audit`'s; `docs/audit.md` says what the chain proves.
"""

from runner.audit import AuditEvent, AuditRow, Head
from runner.store.ledger import UNKNOWN_OWNER_GRACE_S
from runner.store.search import Hit
from runner.store.store import SessionChanges, Store

__all__ = [
    "UNKNOWN_OWNER_GRACE_S",
    "AuditEvent",
    "AuditRow",
    "Head",
    "Hit",
    "SessionChanges",
    "Store",
]
