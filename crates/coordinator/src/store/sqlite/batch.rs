//! Statements with their values, to be run as one: the database's thread is asked once for all of them.
//!
//! Asking it costs more than most statements: two switches of threads, each time.

use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};
use sqlx::{Arguments, AssertSqlSafe, Encode, Type};

use crate::error::StoreError;

/// Up to this many statements the prepared form is kept for the next batch of the same shape.
const KEPT_MAX: usize = 8;

/// Statements that change rows, in their order.
#[derive(Default)]
pub(super) struct Batch {
    sql: String,
    values: SqliteArguments,
    statements: usize,
    /// A value that cannot be bound: nothing is run then.
    failed: Option<sqlx::Error>,
}

impl Batch {
    /// Adds a statement. Its `?` stand for the values that are bound next.
    pub(super) fn statement(&mut self, sql: &'static str) -> &mut Self {
        self.sql.push_str(sql);
        self.sql.push_str(";\n");
        self.statements += 1;
        self
    }

    /// The value of the next `?`.
    pub(super) fn bind<'v, T: Encode<'v, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.values.add(value) {
            self.failed.get_or_insert(sqlx::Error::Encode(error));
        }
        self
    }

    /// Runs all statements. Several are one transaction, which stays open where one of them fails.
    pub(super) async fn run(self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        // One statement is a transaction by itself.
        let sql = if self.statements == 1 { self.sql } else { format!("BEGIN IMMEDIATE;\n{}COMMIT", self.sql) };
        // The text is made of the fixed texts above; what comes from outside is bound.
        let query = sqlx::query_with(AssertSqlSafe(sql), self.values).persistent(self.statements <= KEPT_MAX);
        query.execute(connection).await?;
        Ok(())
    }
}
