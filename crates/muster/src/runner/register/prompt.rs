use std::io::{self, BufRead, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PromptError {
    #[error("the {flag} needs to be entered; set --{flag}")]
    Missing { flag: &'static str },
    #[error("the input ended at the prompt for --{flag}; use --non-interactive to register without prompts")]
    EndOfInput { flag: &'static str },
    #[error("failed to read the input")]
    Read(#[source] io::Error),
    #[error("canceled by a signal")]
    Interrupted,
}

/// Prompts the user. In non-interactive mode, returns the defaults instead.
pub(super) struct Prompter {
    interactive: bool,
    interrupt: Signal,
    terminate: Signal,
}

pub(super) struct Prompt<'a> {
    pub(super) flag: &'static str,
    pub(super) text: &'a str,
    /// Empty if there is no default.
    pub(super) default: &'a str,
    pub(super) optional: bool,
}

impl Prompter {
    pub(super) fn new(interactive: bool) -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interactive, interrupt, terminate })
    }

    pub(super) fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Prompts until the user enters a value or accepts the default. Only an optional setting accepts an empty default.
    ///
    /// In non-interactive mode, returns the default without a prompt.
    pub(super) async fn prompt(&mut self, prompt: Prompt<'_>) -> Result<String, PromptError> {
        let Prompt { flag, text, default, optional } = prompt;
        let default = default.trim();
        if !self.interactive {
            return if default.is_empty() && !optional {
                Err(PromptError::Missing { flag })
            } else {
                Ok(default.to_owned())
            };
        }
        loop {
            anstream::eprintln!("{text}");
            if !default.is_empty() {
                anstream::eprint!("[{default}]: ");
            }
            // An error is ignored, because the user can answer even if the prompt is not visible.
            let _ = io::stderr().flush();
            let line = tokio::task::spawn_blocking(|| {
                let mut line = String::new();
                io::stdin().lock().read_line(&mut line).map(|length| (length > 0).then_some(line))
            });
            // Reading from a terminal cannot be canceled: after a signal, this thread remains until the process ends.
            let line = tokio::select! {
                line = line => line.map_err(io::Error::other).and_then(|line| line).map_err(PromptError::Read)?,
                () = self.wait_for_signal() => return Err(PromptError::Interrupted),
            };
            let Some(line) = line else { return Err(PromptError::EndOfInput { flag }) };
            match line.trim() {
                "" if !default.is_empty() || optional => return Ok(default.to_owned()),
                "" => {}
                answer => return Ok(answer.to_owned()),
            }
        }
    }

    /// Fails if a signal has arrived since the last prompt.
    pub(super) async fn fail_if_signaled(&mut self) -> Result<(), PromptError> {
        tokio::select! {
            biased;
            () = self.wait_for_signal() => Err(PromptError::Interrupted),
            () = std::future::ready(()) => Ok(()),
        }
    }

    async fn wait_for_signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
