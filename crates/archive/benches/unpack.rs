//! Unpacks a zip archive into a directory, and prints the time.
//!
//! ```text
//! cargo bench -p muster-archive --bench unpack -- ARCHIVE DIRECTORY
//! ```
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark prints its results, and panics if it fails"
)]

use std::fs::File;
use std::time::Instant;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use muster_archive::{Format, Limits, unpack};

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(archive) = arguments.next() else { return };
    let directory = arguments.next().expect("usage: unpack ARCHIVE DIRECTORY");
    std::fs::create_dir_all(&directory).unwrap();
    let into = Dir::open_ambient_dir(&directory, ambient_authority()).unwrap();
    let archive = File::open(archive).unwrap();
    let start = Instant::now();
    unpack(&archive, &into, &Limits::default(), Format::Zip, &|| false).unwrap();
    println!("unpack seconds {:.3}", start.elapsed().as_secs_f64());
}
