-- When the authentication token ends, in milliseconds since 1970; NULL: never.
ALTER TABLE runners ADD COLUMN token_expires_at INTEGER;
