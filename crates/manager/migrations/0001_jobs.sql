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
