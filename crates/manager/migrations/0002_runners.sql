-- A manager of many runners at many coordinators: a job's number alone does not name it any more, and each job keeps the
-- settings of the runner it was taken with.

-- Settings of runners that jobs were taken with, by the SHA-256 of their JSON: src/settings.rs says of what; version 1.
CREATE TABLE runners (
    digest   TEXT PRIMARY KEY,
    settings TEXT NOT NULL
) STRICT;

CREATE TABLE jobs_of_runners (
    run      TEXT PRIMARY KEY,    -- the job's name at agents: number and coordinator
    runner   TEXT,                -- its digest; NULL for a job that a manager of one runner took, by version 1
    payload  TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    taken_ms INTEGER NOT NULL     -- milliseconds since the Unix epoch
) STRICT;
INSERT INTO jobs_of_runners SELECT CAST(id AS TEXT), NULL, payload, state, taken_ms FROM jobs;
DROP TABLE jobs;
ALTER TABLE jobs_of_runners RENAME TO jobs;

-- Lanes by runner. Those of version 1 are not kept: only `muster ci` had them, within one run.
DROP TABLE lanes;
CREATE TABLE lanes (
    runner TEXT    NOT NULL, -- RunnerKey
    lane   INTEGER NOT NULL,
    key    TEXT    NOT NULL,
    PRIMARY KEY (runner, lane)
) STRICT;
