"""The tables, and how a file gets them: as a new one, or from an older version.

Owns the definition of every table, index and trigger, and the file's version. What is in
the rows is `rows`', who reads and writes them `store`'s.
"""

from runner.audit import START
from runner.errors import StoreError
from runner.store.database import Database

__all__ = ["check", "migrate"]

_APPLICATION_ID = 0x52554E52
"""`RUNR`: tells our files from any other program's."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            id TEXT NOT NULL PRIMARY KEY,
            state TEXT NOT NULL,
            image TEXT NOT NULL,
            runtime TEXT,
            workspace TEXT NOT NULL,
            managed INTEGER NOT NULL,
            read_only INTEGER NOT NULL,
            kept INTEGER NOT NULL,
            container_id TEXT,
            created_at REAL NOT NULL,
            used_at REAL NOT NULL,
            idle_timeout_s REAL NOT NULL,
            expires_at REAL NOT NULL,
            tenant TEXT NOT NULL,
            options TEXT NOT NULL,
            marker TEXT NOT NULL,
            ended_at REAL
        )
        """,
        "CREATE INDEX sessions_open ON sessions (created_at) WHERE state = 'open'",
        """
        CREATE TABLE calls (
            seq INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL REFERENCES sessions (id),
            tool TEXT NOT NULL,
            verdict TEXT,
            rule TEXT,
            reason TEXT NOT NULL,
            policy TEXT NOT NULL,
            status TEXT,
            exit_code INTEGER,
            started_at REAL NOT NULL,
            duration_s REAL,
            timeout_s REAL,
            owner TEXT NOT NULL,
            details TEXT NOT NULL,
            error TEXT,
            arguments TEXT NOT NULL,
            output TEXT NOT NULL
        )
        """,
        # One page, in practice: every start asks for the calls that dead processes left.
        "CREATE INDEX calls_open ON calls (owner) WHERE status IS NULL",
        """
        CREATE TRIGGER calls_completed BEFORE UPDATE ON calls WHEN OLD.status IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'a completed call does not change'); END
        """,
        """
        CREATE TABLE audit (
            seq INTEGER NOT NULL PRIMARY KEY,
            at_us INTEGER NOT NULL,
            event TEXT NOT NULL,
            session_id TEXT NOT NULL,
            call_id TEXT NOT NULL,
            body TEXT NOT NULL,
            previous TEXT NOT NULL,
            hash TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE audit_head (
            id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
            seq INTEGER NOT NULL,
            hash TEXT NOT NULL
        )
        """,
        f"INSERT INTO audit_head VALUES (1, {START.seq}, '{START.hash}')",  # noqa: S608
        """
        CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
        """,
        """
        CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
        """,
        # Also keeps INSERT OR REPLACE out, which deletes without firing the trigger above.
        """
        CREATE TRIGGER audit_appends BEFORE INSERT ON audit
        WHEN NOT EXISTS (
            SELECT 1 FROM audit_head WHERE NEW.seq = seq + 1 AND NEW.previous = hash
        )
        BEGIN SELECT RAISE(ABORT, 'an audit row follows the last one'); END
        """,
        """
        CREATE TRIGGER audit_moves_head AFTER INSERT ON audit
        BEGIN UPDATE audit_head SET seq = NEW.seq, hash = NEW.hash; END
        """,
    ),
    (
        "ALTER TABLE calls ADD COLUMN shadow TEXT",
        "ALTER TABLE calls ADD COLUMN approval TEXT",
        # For counting the calls of the last moments; the second finds a tenant's sessions.
        "CREATE INDEX calls_started ON calls (session_id, started_at)",
        "CREATE INDEX sessions_of_tenant ON sessions (tenant, ended_at)",
        """
        CREATE TABLE approvals (
            seq INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL REFERENCES sessions (id),
            state TEXT NOT NULL,
            tool TEXT NOT NULL,
            arguments TEXT NOT NULL,
            resolved TEXT,
            hash TEXT NOT NULL,
            policy TEXT NOT NULL,
            rule TEXT,
            reason TEXT NOT NULL,
            asked_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            ended_at REAL,
            answered_by TEXT NOT NULL,
            answered_how TEXT NOT NULL,
            answer TEXT NOT NULL,
            pattern TEXT NOT NULL,
            used_by TEXT NOT NULL
        )
        """,
        "CREATE INDEX approvals_of_session ON approvals (session_id, hash)",
        "CREATE INDEX approvals_pending ON approvals (expires_at) WHERE state = 'pending'",
        """
        CREATE TRIGGER approvals_ended BEFORE UPDATE ON approvals
        WHEN OLD.state != 'pending' AND (NEW.state != OLD.state OR OLD.used_by != '')
        BEGIN SELECT RAISE(ABORT, 'an approval ends once and is used once'); END
        """,
    ),
    (
        "ALTER TABLE sessions ADD COLUMN title TEXT NOT NULL DEFAULT ''",
        """
        CREATE TABLE connections (
            seq INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            session_id TEXT NOT NULL REFERENCES sessions (id),
            protocol TEXT NOT NULL,
            host TEXT NOT NULL,
            port INTEGER NOT NULL,
            method TEXT NOT NULL,
            path TEXT NOT NULL,
            address TEXT NOT NULL,
            verdict TEXT NOT NULL,
            rule TEXT,
            reason TEXT NOT NULL,
            credential TEXT NOT NULL,
            started_at REAL NOT NULL,
            ended_at REAL,
            sent_bytes INTEGER NOT NULL,
            received_bytes INTEGER NOT NULL
        )
        """,
        "CREATE INDEX connections_of_session ON connections (session_id, started_at)",
        # Every end of a session asks for those.
        "CREATE INDEX connections_open ON connections (session_id) WHERE ended_at IS NULL",
        """
        CREATE TABLE jobs (
            id TEXT NOT NULL PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            schedule TEXT NOT NULL,
            zone TEXT NOT NULL,
            calls TEXT NOT NULL,
            policy TEXT NOT NULL,
            created_at REAL NOT NULL,
            seen_to REAL NOT NULL,
            enabled INTEGER NOT NULL,
            image TEXT NOT NULL,
            workspace TEXT NOT NULL,
            read_only INTEGER NOT NULL,
            network TEXT NOT NULL,
            tools TEXT NOT NULL,
            timeout_s REAL,
            run_timeout_s REAL NOT NULL,
            deliver TEXT NOT NULL,
            missed TEXT NOT NULL,
            overlap TEXT NOT NULL,
            lost TEXT NOT NULL
        )
        """,
        # Runs outlive their jobs.
        """
        CREATE TABLE runs (
            seq INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            job_id TEXT NOT NULL,
            job TEXT NOT NULL,
            scheduled_at REAL NOT NULL,
            state TEXT NOT NULL,
            manual INTEGER NOT NULL,
            missed INTEGER NOT NULL,
            attempts INTEGER NOT NULL,
            owner TEXT NOT NULL,
            started_at REAL,
            ended_at REAL,
            session_id TEXT NOT NULL,
            reason TEXT NOT NULL,
            delivery TEXT NOT NULL,
            UNIQUE (job_id, scheduled_at)
        )
        """,
        "CREATE INDEX runs_of_job ON runs (job)",
        "CREATE INDEX runs_active ON runs (job_id) WHERE state IN ('due', 'running')",
        "CREATE INDEX runs_undelivered ON runs (job_id) WHERE delivery = 'pending'",
        """
        CREATE TRIGGER runs_one_at_a_time BEFORE UPDATE ON runs
        WHEN NEW.state = 'running' AND OLD.state != 'running' AND EXISTS (
            SELECT 1 FROM runs WHERE job_id = NEW.job_id AND state = 'running'
        )
        BEGIN SELECT RAISE(ABORT, 'a job has one run at a time'); END
        """,
        """
        CREATE TRIGGER runs_end_once BEFORE UPDATE ON runs
        WHEN OLD.state IN ('ok', 'failed', 'lost', 'skipped') AND NEW.state != OLD.state
        BEGIN SELECT RAISE(ABORT, 'a run ends once'); END
        """,
    ),
)
"""Entry n takes the schema from version n to n + 1. Entries that were released never change.

The SQL stays within what SQLite 3.24 knows: enterprise distributions still have it.
"""


def check(database: Database) -> bool:
    """See that the file is ours, or new, and not newer than this version. Changes nothing.

    Returns:
        Whether it is as this version would have it; otherwise `migrate` makes it so.

    Raises:
        StoreError: It is another program's, or was made by a newer version.
    """
    with database.reading:
        version = _version(database)
    known = len(_MIGRATIONS)
    if version > known:
        raise StoreError(
            f"{database.path} was made by a newer version of rousseau-runner (its schema is"
            f" {version}, this version knows {known}): update rousseau-runner"
        )
    return version == known


def migrate(database: Database) -> None:
    """Bring the file to this version's schema; another process may do so at the same time."""
    with database.writing:
        for migration in _MIGRATIONS[_version(database) :]:
            for statement in migration:
                database.execute(statement)
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _version(database: Database) -> int:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    new = application == version == tables == 0
    if application != _APPLICATION_ID and not new:
        raise StoreError(f"{database.path} is another program's database: choose another path")
    return int(version)
