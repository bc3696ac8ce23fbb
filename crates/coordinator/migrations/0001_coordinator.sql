-- Instants are milliseconds since the Unix epoch, UTC. Columns named `detail` hold JSON that only the coordinator reads.

CREATE TABLE runners (
    -- AUTOINCREMENT: the ID of a deleted runner is never assigned again, because jobs refer to it.
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    -- SHA-256 of the authentication token, hexadecimal. The token itself is not stored.
    token_hash       TEXT    NOT NULL UNIQUE,
    created_at       INTEGER NOT NULL,
    -- When the token expires. NULL means never.
    token_expires_at INTEGER,
    detail           TEXT    NOT NULL
) STRICT;

CREATE TABLE managers (
    runner_id    INTEGER NOT NULL REFERENCES runners (id) ON DELETE CASCADE,
    system_id    TEXT    NOT NULL,
    contacted_at INTEGER NOT NULL,
    info         TEXT    NOT NULL,
    PRIMARY KEY (runner_id, system_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE pipelines (
    id              INTEGER PRIMARY KEY,
    -- The pipeline at the top of the hierarchy. Pipelines with the same root form a hierarchy.
    root            INTEGER NOT NULL,
    parent_pipeline INTEGER,
    parent_bridge   INTEGER,
    -- 1 if the hierarchy can change without a command. Open hierarchies are read at the start.
    open            INTEGER NOT NULL,
    status          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    finished_at     INTEGER,
    -- Fields that change with the status: warnings and problems.
    detail          TEXT    NOT NULL,
    -- Fields that never change: project, commit and context.
    spec            TEXT    NOT NULL,
    -- The compiled configuration.
    compiled        TEXT    NOT NULL
) STRICT;

CREATE INDEX pipelines_by_root ON pipelines (root);
CREATE INDEX pipelines_open ON pipelines (id) WHERE open = 1;

CREATE TABLE jobs (
    id             INTEGER PRIMARY KEY,
    pipeline_id    INTEGER NOT NULL REFERENCES pipelines (id),
    -- Index of the job in the compiled configuration.
    job_index      INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    stage          TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    attempt        INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    queued_at      INTEGER,
    started_at     INTEGER,
    finished_at    INTEGER,
    runner_id      INTEGER,
    system_id      TEXT,
    failure_reason TEXT,
    exit_code      INTEGER,
    coverage       REAL,
    detail         TEXT    NOT NULL
) STRICT;

CREATE INDEX jobs_by_pipeline ON jobs (pipeline_id);

CREATE TABLE artifacts (
    job_id     INTEGER NOT NULL REFERENCES jobs (id),
    kind       TEXT    NOT NULL,
    format     TEXT    NOT NULL,
    filename   TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    -- 1 if the file has expired and was deleted.
    deleted    INTEGER NOT NULL,
    PRIMARY KEY (job_id, kind)
) STRICT, WITHOUT ROWID;

CREATE INDEX artifacts_to_expire ON artifacts (expires_at) WHERE deleted = 0 AND expires_at IS NOT NULL;

CREATE TABLE events (
    -- AUTOINCREMENT: the number of a deleted event is never assigned again.
    sequence    INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    pipeline_id INTEGER NOT NULL,
    job_id      INTEGER NOT NULL,
    change      TEXT    NOT NULL
) STRICT;
