//! `read-logs`: follows a file that a job's script writes, and prints each line with the offset of its end.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The exit code that tells the caller that the file is gone: the job's environment was cleaned up.
const GONE: u8 = 100;
/// Between two looks at the file: what writes it may be on another machine, where nothing can be watched.
const INTERVAL: Duration = Duration::from_millis(200);
/// A longer line is cut: the reader splits at line ends.
const LINE_MAX: usize = 16 * 1024;

/// Arguments of `read-logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file.
    #[arg(long)]
    path: PathBuf,
    /// The offset to start from.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// How long to wait for the file to appear, for example 1s.
    #[arg(long, default_value = "1s", value_parser = crate::flags::go_duration)]
    wait_file_timeout: Duration,
}

/// Runs the command: it ends when the file is gone, or its reader is.
pub(super) fn run(args: &Args) -> ExitCode {
    let mut output = io::stdout().lock();
    match follow(args, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ExitCode::from(GONE),
        Err(error) => {
            // Told where the caller reads.
            let _ = writeln!(output, "error reading logs {error}");
            ExitCode::FAILURE
        }
    }
}

fn follow(args: &Args, output: &mut impl Write) -> io::Result<()> {
    let mut file = open(args)?;
    let mut offset = file.seek(SeekFrom::Start(args.offset))?;
    let mut reader = BufReader::with_capacity(LINE_MAX, file);
    loop {
        let piece = reader.fill_buf()?;
        if piece.is_empty() {
            output.flush()?;
            // A deleted file stays readable, and is at its end for ever.
            std::fs::metadata(&args.path)?;
            sleep(INTERVAL);
            continue;
        }
        let (length, ends) = match piece.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (piece.len(), false),
        };
        offset += length as u64;
        write!(output, "{offset} ")?;
        output.write_all(&piece[..length])?;
        if !ends {
            output.write_all(b"\n")?;
        }
        reader.consume(length);
    }
}

fn open(args: &Args) -> io::Result<File> {
    let deadline = Instant::now() + args.wait_file_timeout;
    loop {
        match File::open(&args.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "timeout waiting for file to be created"));
                }
                sleep(INTERVAL);
            }
            opened => return opened,
        }
    }
}
