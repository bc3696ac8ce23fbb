//! `builtin://driver/stage`: runs a generated script for a stage of the job.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::DriverStage;
use muster_steps::builtin::{Builtin, Role};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::script;
use crate::blocking::blocking;
use crate::context::Context;
use crate::driver_state::DriverState;

const OLD_NAME: &str =
    "the driver gets the stage `step_script` under its deprecated name `build_script`; it should accept both names";

#[async_trait]
impl Builtin<Context> for DriverStage {
    fn role(&self) -> Role {
        match self.stage.as_str() {
            "get_sources" => Role::Sources,
            "after_script" => Role::AfterScript,
            "cleanup_file_variables" => Role::Cleanup,
            stage if stage.starts_with("step_") => Role::Script,
            _ => Role::Other,
        }
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        let session = session(context)?;
        let text = script::generate(&session, context, &self.builtin, &self.inputs)?;
        let ended = run_script(&session, context, &self.stage, text, stop).await;
        match (self.stage.as_str(), ended) {
            ("prepare_script", Err(failure @ Failure::Exit(_))) => {
                Err(Failure::Profile(failure.to_string(), failure.exit_code()))
            }
            (_, ended) => ended,
        }
    }

    fn clear_section(&self) -> Option<(&'static str, &'static str)> {
        (self.stage == "get_sources" && script::has_repository(&self.inputs)).then_some(script::CLEAR_WORKTREE)
    }

    async fn clear(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        let session = session(context)?;
        let text = script::clear_worktree(&session, context);
        run_script(&session, context, "clear_worktree", text, stop).await
    }
}

fn session(context: &Context) -> Result<Arc<DriverState>, Failure> {
    let session = context.driver.lock().clone();
    session.ok_or_else(|| Failure::System("the driver of the custom executor was not prepared".to_owned()))
}

async fn run_script(
    session: &DriverState,
    context: &Context,
    stage: &str,
    text: String,
    stop: &StopToken,
) -> Result<(), Failure> {
    let dir = session.dir.clone();
    let path = blocking(context, "writing the script of a stage", stop, move || {
        write(&dir, &text).map_err(Failure::io(format!("failed to write a script to {}", dir.display())))
    })
    .await?;
    let name = match stage {
        "step_script" => {
            context.print(&style::warning(OLD_NAME));
            "build_script"
        }
        other => other,
    };
    session.stage(context, &path, name, stop).await
}

/// Writes a script to a separate directory, which the driver can mount. Returns the path of the script.
fn write(dir: &Path, text: &str) -> std::io::Result<PathBuf> {
    let dir = dir.join(format!("script{:016x}", rand::random::<u64>()));
    DirBuilder::new().mode(0o700).create(&dir)?;
    let path = dir.join("script");
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o700).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}
