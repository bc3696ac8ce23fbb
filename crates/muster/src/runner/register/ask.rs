//! Questions to the person at the terminal, and the signals that end them.

use std::io::{self, BufRead, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("the {flag} needs to be entered: pass --{flag}")]
    Missing { flag: &'static str },
    #[error("the input ended at the question for --{flag}; to register without questions, pass --non-interactive")]
    Ended { flag: &'static str },
    #[error("cannot read the answer")]
    Read(#[source] io::Error),
    #[error("received a signal to end")]
    Interrupted,
}

/// One who asks.
pub(super) struct Asker {
    interactive: bool,
    interrupt: Signal,
    terminate: Signal,
}

/// One question.
pub(super) struct Question<'a> {
    /// The flag that answers it.
    pub(super) flag: &'static str,
    /// Its words.
    pub(super) text: &'a str,
    /// The answer where the person just goes on.
    pub(super) default: &'a str,
    /// Whether no answer is one.
    pub(super) optional: bool,
}

impl Asker {
    pub(super) fn new(interactive: bool) -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interactive, interrupt, terminate })
    }

    /// Whether there is a person to answer.
    pub(super) fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// The answer, or the default where nobody is to be asked. An answer that is needed is asked for again.
    pub(super) async fn ask(&mut self, question: Question<'_>) -> Result<String, AskError> {
        let Question { flag, text, default, optional } = question;
        let default = default.trim();
        if !self.interactive {
            return if default.is_empty() && !optional {
                Err(AskError::Missing { flag })
            } else {
                Ok(default.to_owned())
            };
        }
        loop {
            anstream::eprintln!("{text}");
            if !default.is_empty() {
                anstream::eprint!("[{default}]: ");
            }
            // A prompt that cannot be shown is answered blindly.
            let _ = io::stderr().flush();
            let line = tokio::task::spawn_blocking(|| {
                let mut line = String::new();
                io::stdin().lock().read_line(&mut line).map(|length| (length > 0).then_some(line))
            });
            // The thread that reads stays until the process ends: reading from a terminal cannot be taken back.
            let line = tokio::select! {
                line = line => line.map_err(io::Error::other).and_then(|line| line).map_err(AskError::Read)?,
                () = self.interrupted() => return Err(AskError::Interrupted),
            };
            let Some(line) = line else { return Err(AskError::Ended { flag }) };
            match line.trim() {
                "" if !default.is_empty() || optional => return Ok(default.to_owned()),
                "" => {}
                answer => return Ok(answer.to_owned()),
            }
        }
    }

    /// Whether a signal came while nobody was asked.
    pub(super) async fn check(&mut self) -> Result<(), AskError> {
        tokio::select! {
            biased;
            () = self.interrupted() => Err(AskError::Interrupted),
            () = std::future::ready(()) => Ok(()),
        }
    }

    async fn interrupted(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
