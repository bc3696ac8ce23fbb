//! Commands of the prompt.

use muster_agent_api::development::{Breakpoint, BreakpointError};

pub(super) const HELP: &str = "\
continue, c          Continue to the next breakpoint
next, n              Continue to the start or the end of the next step
skip                 Before a step: do not run it. After a failed step: ignore its failure
fail                 Let the step fail
info, i              Show inputs, environment and outputs of the step
inputs, outputs      Show the inputs or the outputs
env [NAME]           Show the environment of the step, or one variable
! COMMAND            Run a shell command with the environment and in the working directory of the step
steps                List the steps and their states
break BREAKPOINT     Set a breakpoint: before:STEP, after:STEP, failure:STEP or failure
clear BREAKPOINT     Clear a breakpoint
breakpoints          List the breakpoints
detach               Clear all breakpoints and let the job run to its end; the end of the input does the same
quit, q              Cancel the job
";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PromptCommand {
    Empty,
    Help,
    Continue,
    Next,
    Skip,
    Fail,
    Info,
    Inputs,
    Outputs,
    /// Shows the environment, or the variable of this name.
    Env(Option<String>),
    Execute(String),
    Steps,
    Break(Breakpoint),
    Clear(Breakpoint),
    Breakpoints,
    Detach,
    Quit,
}

/// Invalid line at the prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandError {
    #[error("unknown command {0:?}; enter `help` for a list")]
    Unknown(String),
    #[error("{0}")]
    Breakpoint(#[from] BreakpointError),
    #[error("`!` needs a shell command, such as `! ls`")]
    NoCommand,
}

impl PromptCommand {
    pub(super) fn parse(line: &str) -> Result<Self, CommandError> {
        let line = line.trim();
        if let Some(command) = line.strip_prefix('!') {
            let command = command.trim();
            return if command.is_empty() {
                Err(CommandError::NoCommand)
            } else {
                Ok(Self::Execute(command.to_owned()))
            };
        }
        let (word, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim();
        Ok(match (word, argument) {
            ("", _) => Self::Empty,
            ("env", name) => Self::Env(Some(name.to_owned()).filter(|name| !name.is_empty())),
            ("break" | "b", breakpoint) => Self::Break(breakpoint.parse()?),
            ("clear", breakpoint) => Self::Clear(breakpoint.parse()?),
            (_, argument) if !argument.is_empty() => return Err(CommandError::Unknown(line.to_owned())),
            ("help" | "h" | "?", _) => Self::Help,
            ("continue" | "c", _) => Self::Continue,
            ("next" | "n", _) => Self::Next,
            ("skip", _) => Self::Skip,
            ("fail", _) => Self::Fail,
            ("info" | "i", _) => Self::Info,
            ("inputs", _) => Self::Inputs,
            ("outputs", _) => Self::Outputs,
            ("steps", _) => Self::Steps,
            ("breakpoints", _) => Self::Breakpoints,
            ("detach", _) => Self::Detach,
            ("quit" | "q", _) => Self::Quit,
            _ => return Err(CommandError::Unknown(line.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let breakpoint = || "before:a/b".parse::<Breakpoint>().unwrap();
        for (line, command) in [
            ("", PromptCommand::Empty),
            (" c ", PromptCommand::Continue),
            ("env", PromptCommand::Env(None)),
            ("env PATH", PromptCommand::Env(Some("PATH".to_owned()))),
            ("! ls -l", PromptCommand::Execute("ls -l".to_owned())),
            ("break before:a/b", PromptCommand::Break(breakpoint())),
            ("clear before:a/b", PromptCommand::Clear(breakpoint())),
        ] {
            assert_eq!(PromptCommand::parse(line), Ok(command), "{line}");
        }
        for line in ["jump", "continue now", "!", "break a"] {
            assert!(PromptCommand::parse(line).is_err(), "{line}");
        }
    }
}
