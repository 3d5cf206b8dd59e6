"""What happened, on disk: sessions, calls, and the audit chain, in one SQLite file.

    database   a private file that several processes use: permissions, transactions, errors
    schema     its tables, and how older files get them
    rows       records as rows: texts of bounded length, digests, what the audit says
    store      Store: the changes and the questions, a transaction each

All the SQL there is stands in `schema` and `store`. What a row of the chain looks like and
how it is hashed is `runner.audit`'s; `docs/audit.md` says what the chain proves.
"""

from runner.audit import AuditEvent, AuditRow, Head
from runner.store.store import UNKNOWN_OWNER_GRACE_S, SessionChanges, Store

__all__ = ["AuditEvent", "AuditRow", "Head", "SessionChanges", "Store", "UNKNOWN_OWNER_GRACE_S"]
