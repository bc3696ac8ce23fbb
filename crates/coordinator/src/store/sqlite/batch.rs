//! Statements with their values, run as one query.
//!
//! The database has its own thread. Each query costs two thread switches, which is more than most statements cost.

use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};
use sqlx::{Arguments, AssertSqlSafe, Encode, Type};

use crate::error::StoreError;

/// Maximum number of statements of a batch whose SQL is cached as a prepared query.
const MAX_CACHED: usize = 8;

#[derive(Default)]
pub(super) struct Batch {
    sql: String,
    values: SqliteArguments,
    pub(super) statements: usize,
    /// Error for a value that cannot be bound. The batch is not run then.
    bind_error: Option<sqlx::Error>,
}

impl Batch {
    /// Adds a statement. The caller then binds a value for each `?`.
    pub(super) fn statement(&mut self, sql: &'static str) -> &mut Self {
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
        self.statements += 1;
        self
    }

    pub(super) fn bind<'v, T: Encode<'v, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.values.add(value) {
            self.bind_error.get_or_insert(sqlx::Error::Encode(error));
        }
        self
    }

    /// Runs all statements, in one transaction if there are several. The transaction stays open if one of them fails.
    pub(super) async fn run(self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        if let Some(error) = self.bind_error {
            return Err(error.into());
        }
        // SQLite runs a single statement as a transaction.
        let sql = if self.statements == 1 { self.sql } else { format!("BEGIN IMMEDIATE;\n{}COMMIT", self.sql) };
        // The text consists of constants from `statement`; values from outside are bound.
        let query = sqlx::query_with(AssertSqlSafe(sql), self.values).persistent(self.statements <= MAX_CACHED);
        query.execute(connection).await?;
        Ok(())
    }
}
