-- A kept sample of state.db, version 1, as its manager left it.
-- Jobs that this manager has taken, from the answer of the job request to the acknowledged final state.
-- Payload and state are JSON: src/store/mod.rs and src/state.rs say of what; version 1 of both.
CREATE TABLE jobs (
    id       INTEGER PRIMARY KEY, -- the job's id at the coordinator
    payload  TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    taken_ms INTEGER NOT NULL     -- milliseconds since the Unix epoch
) STRICT;

-- The idempotency key of each request lane. It changes in the transaction that stores the job it brought, so that a
-- manager that dies before that asks for the same job again (life-of-a-job R1).
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    key  TEXT    NOT NULL
) STRICT;

CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES (1, 'jobs', '2026-01-01 00:00:00', TRUE, X'2212F1D28CA9B8722C14BF92F8DC8AB594A99FD1066AEE0B17BAED9609A5B62CEA765D46A8A73C43CF0815BCC7166AC5', 1000);
INSERT INTO jobs VALUES (7, '{"id":7,"token":"secret"}', '{"state":"running","lease":{"environment":"host","slot":{"id":0,"project_slot":0,"key":{"project_id":1}}},"attempt":1}', 1700000000000);
INSERT INTO jobs VALUES (8, '{"id":8,"token":"secret"}', '{"state":"taken"}', 1700000000001);
INSERT INTO lanes VALUES (0, '00000000000000000000000000000000');
