//! `read-logs`: follows a log file of a job. Each printed line begins with the offset of its end in the file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Exit code if the file was deleted when the job's environment was cleaned up.
const EXIT_FILE_DELETED: u8 = 100;
/// Interval at which the file is read. File events would not report writes by another machine.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longer lines are split, as by gitlab-runner.
const MAX_LINE_BYTES: u64 = 16 * 1024;

/// Arguments of `gitlab-runner read-logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadLogsArgs {
    /// Log file to follow.
    #[arg(long)]
    path: PathBuf,
    /// Offset in the file to start from.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// Maximum time to wait for the file to appear, for example 1s.
    #[arg(long, default_value = "1s", value_parser = crate::flags::go_duration)]
    wait_file_timeout: Duration,
}

/// Ends when the file is deleted, or when the reader closes the output.
pub(super) fn run(args: &ReadLogsArgs) -> ExitCode {
    let mut output = io::stdout().lock();
    match follow(args, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ExitCode::from(EXIT_FILE_DELETED),
        Err(error) => {
            let _ = writeln!(output, "error reading logs {error}");
            ExitCode::FAILURE
        }
    }
}

fn follow(args: &ReadLogsArgs, output: &mut impl Write) -> io::Result<()> {
    let mut file = open(args)?;
    let mut offset = file.seek(SeekFrom::Start(args.offset))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Ends at a line break, at the limit, or at the end of the file.
        let length = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if length == 0 {
            output.flush()?;
            // Fails if the file was deleted. Reading the open file would not.
            std::fs::metadata(&args.path)?;
            sleep(POLL_INTERVAL);
            continue;
        }
        offset += length as u64;
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        write!(output, "{offset} ")?;
        output.write_all(&line)?;
    }
}

fn open(args: &ReadLogsArgs) -> io::Result<File> {
    let deadline = Instant::now() + args.wait_file_timeout;
    loop {
        match File::open(&args.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "timeout waiting for file to be created"));
                }
                sleep(POLL_INTERVAL);
            }
            opened => return opened,
        }
    }
}
