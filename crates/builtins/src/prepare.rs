//! `builtin://prepare`: prints which executor runs the job, and where.

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::Prepare;
use muster_steps::builtin::{Builtin, Role};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::context::Context;

#[async_trait]
impl Builtin<Context> for Prepare {
    fn role(&self) -> Role {
        Role::Prepare
    }

    async fn run(&self, context: &Arc<Context>, _: &StopToken) -> Result<(), Failure> {
        let lines = self.lines.iter().map(|line| style::plain(line));
        let echoed = self.echoed.iter().map(|line| format!("{line}\n"));
        context.print(&lines.chain(echoed).collect::<String>());
        Ok(())
    }
}
