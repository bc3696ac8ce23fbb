//! Measures how fast the log of a job with many secrets is masked, and the delay of other tasks on the same thread.
//!
//! Run it with `cargo bench -p muster-builtins --bench flood -- [MIB] [SECRETS]`.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "output of a benchmark")]

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_builtins::trace::{Sink, Trace, TraceOptions};
use muster_job::mask::Secrets;
use muster_steps::log::Log;
use muster_steps::process::{Command, Containment, ProcessEnd, ProcessManager};
use muster_steps::stop::StopToken;

struct FileSink(std::fs::File, Arc<AtomicU64>);

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.1.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.0.write_all(bytes)
    }
}

fn secret(number: usize) -> String {
    format!("{:08x}-secret-{number}", number.wrapping_mul(2_654_435_761) & 0xffff_ffff)
}

/// Writes a log of this size. Each line contains a secret, or only its beginning if `has_secrets` is not set.
fn write_log(path: &Path, mib: usize, secrets: usize, has_secrets: bool) {
    let mut block = Vec::new();
    for line in 0.. {
        if block.len() >= 1 << 20 {
            break;
        }
        let full = secret(line % secrets.max(1));
        let shown = if has_secrets { full.as_str() } else { full.get(..10).unwrap_or_default() };
        block.extend_from_slice(format!("{line:>8} compiled module with {shown} in 0.{line} s\n").as_bytes());
    }
    let mut file = std::fs::File::create(path).expect("failed to create a file");
    for _ in 0..mib {
        file.write_all(&block).expect("failed to write the log");
    }
}

/// Writes the log to the trace of a job, while another task runs on the same thread.
///
/// Returns the duration, the longest delay of that task, and the number of bytes that were written to `spool`.
async fn flood(log: &Path, spool: &Path, secrets: usize) -> (Duration, Duration, u64) {
    let values: Vec<String> = (0..secrets).map(secret).collect();
    let options = TraceOptions {
        secrets: Secrets::new(values.iter().map(String::as_str), []),
        limit: u64::MAX,
        ..TraceOptions::default()
    };
    let written = Arc::new(AtomicU64::new(0));
    let sink = FileSink(std::fs::File::create(spool).expect("failed to create a file"), Arc::clone(&written));
    let trace: Arc<dyn Log> = Arc::new(Trace::new(&options, Box::new(sink), 0, Box::new(|_| {})));
    let manager = ProcessManager::new(Containment::ProcessTree, None);
    let processes = manager.new_job("flood", "1", Arc::new(|_| Ok(()))).expect("failed to create a job");
    let cat = Command { program: "/bin/cat".into(), args: vec![log.into()], ..Command::default() };
    let max_delay = Arc::new(parking_lot::Mutex::new(Duration::ZERO));
    let max_delay_writer = Arc::clone(&max_delay);
    let other = tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            tokio::task::yield_now().await;
            let now = Instant::now();
            let mut max_delay = max_delay_writer.lock();
            *max_delay = max_delay.max(now - last);
            last = now;
        }
    });
    let started = Instant::now();
    let ended = processes.run(cat, &trace, &StopToken::new(), Duration::from_secs(1)).await.expect("failed to run cat");
    let took = started.elapsed();
    assert!(matches!(ended, ProcessEnd::Exited(status) if status.success()), "{ended:?}");
    other.abort();
    processes.finish(Duration::from_secs(1)).await;
    let max_delay = *max_delay.lock();
    (took, max_delay, written.load(Ordering::Relaxed))
}

fn main() {
    // `cargo bench` also passes flags such as `--bench`. Only numbers are read.
    let mut numbers = std::env::args().filter_map(|text| text.parse().ok());
    let (mib, secrets) = (numbers.next().unwrap_or(200), numbers.next().unwrap_or(50));
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let (log, spool) = (dir.path().join("log"), dir.path().join("spool"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("failed to create a runtime");
    for (name, has_secrets) in [("no secret", false), ("one in each line", true)] {
        write_log(&log, mib, secrets, has_secrets);
        let (took, max_delay, written) = runtime.block_on(flood(&log, &spool, secrets));
        println!(
            "{name}: {mib} MiB, {secrets} secrets: {:.0} MiB/s, longest delay {:.1} ms, {written} bytes",
            mib as f64 / took.as_secs_f64(),
            max_delay.as_secs_f64() * 1000.0
        );
    }
}
