//! `builtin://driver/cleanup`: cleans up the environment of a driver.

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::DriverCleanup;
use muster_steps::builtin::{Builtin, Role};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::context::Context;

#[async_trait]
impl Builtin<Context> for DriverCleanup {
    fn role(&self) -> Role {
        Role::Cleanup
    }

    async fn run(&self, context: &Arc<Context>, _: &StopToken) -> Result<(), Failure> {
        // A failed preparation has already cleaned up.
        let session = context.driver.lock().take();
        if let Some(session) = session
            && let Err(failure) = session.clean_up(context).await
        {
            context.print(&style::warning(&format!("Cleanup script failed: {failure}")));
        }
        Ok(())
    }
}
