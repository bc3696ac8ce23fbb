-- Instants are milliseconds since the Unix epoch, UTC. Columns named `detail` hold JSON that only the coordinator reads.

CREATE TABLE runners (
    id         INTEGER PRIMARY KEY,
    -- SHA-256 of the authentication token, hexadecimal; the token itself is nowhere.
    token_hash TEXT    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    detail     TEXT    NOT NULL
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
    parent_pipeline INTEGER,
    parent_bridge   INTEGER,
    status          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    finished_at     INTEGER,
    -- What changes with the status: warnings, problems.
    detail          TEXT    NOT NULL,
    -- What never changes: project, commit, context.
    spec            TEXT    NOT NULL,
    -- The compiled configuration.
    compiled        TEXT    NOT NULL
) STRICT;

CREATE TABLE jobs (
    id             INTEGER PRIMARY KEY,
    pipeline_id    INTEGER NOT NULL REFERENCES pipelines (id),
    -- Place of the job in the compiled configuration.
    place          INTEGER NOT NULL,
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
    PRIMARY KEY (job_id, kind)
) STRICT, WITHOUT ROWID;
