-- A kept sample of state.db, version 2, the last one before state.log, as its manager left it.
CREATE TABLE runners (
    digest   TEXT PRIMARY KEY,
    settings TEXT NOT NULL
) STRICT;
CREATE TABLE jobs (
    run      TEXT PRIMARY KEY,
    runner   TEXT,
    payload  TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    taken_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE lanes (
    runner TEXT    NOT NULL,
    lane   INTEGER NOT NULL,
    key    TEXT    NOT NULL,
    PRIMARY KEY (runner, lane)
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
INSERT INTO _sqlx_migrations VALUES (2, 'runners', '2026-01-01 00:00:00', TRUE, X'7874CC85A029CFAE11EA62FA16C374B43533FC3D583DCDA5F95D45718FDBCB5E840302CFD347B08893E13420BB1D97EB', 1000);
INSERT INTO runners VALUES ('ab12', '{"key":"https://gitlab.example#7","name":"kept","url":"https://gitlab.example/","token":"one","id":7}');
INSERT INTO jobs VALUES ('7-0a1b2c3d', 'ab12', '{"id":7,"token":"secret"}', '{"state":"running","lease":{"environment":"host","slot":{"id":0,"project_slot":0,"key":{"project_id":1}}},"attempt":1}', 1700000000000);
INSERT INTO jobs VALUES ('8-0a1b2c3d', 'ab12', '{', '{"state":"taken"}', 1700000000001);
INSERT INTO lanes VALUES ('https://gitlab.example#7', 3, '33333333333333333333333333333333');
