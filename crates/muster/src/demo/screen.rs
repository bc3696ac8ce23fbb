//! The terminal: drawn over, and put back as it was.

use std::io::{IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal while it is drawn on. Dropped, it is as it was.
pub(super) struct Screen {
    /// How keys were read before; none where the input is no terminal.
    before: Option<Termios>,
}

impl Screen {
    /// Takes the terminal; none where nobody looks at one.
    pub(super) fn take() -> Option<Self> {
        if !std::io::stdout().is_terminal() || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            return None;
        }
        let input = std::io::stdin();
        let before = tcgetattr(&input).ok().filter(|_| input.is_terminal());
        if let Some(before) = &before {
            // Keys as they are pressed, and not shown; Ctrl-C stays a signal.
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(&input, OptionalActions::Now, &keys);
        }
        write(ENTER);
        Some(Self { before })
    }

    /// Columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Shows these lines. Nothing flickers: each line is written over the one before.
    pub(super) fn show(&self, lines: &[String]) {
        let mut text = "\x1b[H".to_owned();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text);
    }

    /// Keys that are pressed. Its thread reads until the input or the process ends.
    pub(super) fn keys(&self) -> mpsc::Receiver<u8> {
        let (sender, receiver) = mpsc::channel(1);
        if self.before.is_some() {
            std::thread::spawn(move || {
                use std::io::Read as _;
                let (mut input, mut key) = (std::io::stdin(), [0]);
                while input.read_exact(&mut key).is_ok() && sender.blocking_send(key[0]).is_ok() {}
            });
        }
        receiver
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// A terminal that is gone is no reason to stop: the end comes by its hang-up.
fn write(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}
