use std::io::{IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal while the demo draws on it. Dropping restores the previous state.
pub(super) struct Screen {
    /// Previous settings of stdin. `None` if stdin is not a terminal.
    previous: Option<Termios>,
}

impl Screen {
    /// Returns `None` if stdout is not a terminal, or if the terminal cannot move its cursor.
    pub(super) fn take() -> Option<Self> {
        if !std::io::stdout().is_terminal() || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            return None;
        }
        let input = std::io::stdin();
        let previous = tcgetattr(&input).ok().filter(|_| input.is_terminal());
        if let Some(previous) = &previous {
            // Read keys immediately and without echo. Ctrl-C still raises a signal.
            let mut settings = previous.clone();
            settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(&input, OptionalActions::Now, &settings);
        }
        write(ENTER);
        Some(Self { previous })
    }

    /// Returns the numbers of columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Overwrites the previous lines in place, so that nothing flickers.
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

    /// Starts a thread that reads pressed keys. The receiver gets nothing if stdin is not a terminal.
    pub(super) fn keys(&self) -> mpsc::Receiver<u8> {
        let (sender, receiver) = mpsc::channel(1);
        if self.previous.is_some() {
            std::thread::spawn(move || {
                use std::io::Read as _;
                let (mut input, mut key) = (std::io::stdin(), [0_u8; 1]);
                while let (Ok(()), [key]) = (input.read_exact(&mut key), key) {
                    if sender.blocking_send(key).is_err() {
                        break;
                    }
                }
            });
        }
        receiver
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(LEAVE);
        if let Some(previous) = &self.previous {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, previous);
        }
    }
}

/// Ignores errors: if the terminal was closed, a hang-up signal ends the demo.
fn write(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}
