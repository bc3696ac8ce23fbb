//! Unpacks archives into the directory of a job or command.

use std::fs::File;

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::blocking;
use crate::transfer::{MessageLevel, TransferContext};

/// Unpacks an archive into the root of `context`. Prints a warning for each skipped entry.
///
/// # Errors
/// As for [`Extraction::run`](crate::Extraction::run).
pub async fn extract(context: &dyn TransferContext, archive: File, stop: &StopToken) -> Result<(), Failure> {
    let (extraction, watch) = (context.extraction(), stop.clone());
    let skipped = blocking(context, "unpacking an archive", stop, move || extraction.run(archive, &watch)).await?;
    skipped.lines().for_each(|line| context.report(MessageLevel::Warning, &line));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::path::PathBuf;

    use muster_archive::Limits;

    use super::*;
    use crate::extraction::{Extraction, LimitsFrom};
    use crate::files::format::{Format, Level};
    use crate::files::pack::pack;

    fn archive(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn archive_round_trips_in_every_format() {
        for format in [Format::Zip, Format::ZipZstd, Format::TarZstd] {
            for level in ["fastest", "default", "slowest"] {
                round_trip(format, Level::from_name(Some(level)));
            }
        }
    }

    fn round_trip(format: Format, level: Level) {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let from = tempfile::tempdir().unwrap();
        let run = from.path().join("d/run");
        std::fs::create_dir(from.path().join("d")).unwrap();
        std::fs::write(&run, "content").unwrap();
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o750)).unwrap();
        filetime::set_file_mtime(&run, filetime::FileTime::from_unix_time(1_700_000_001, 0)).unwrap();
        std::os::unix::fs::symlink("run", from.path().join("d/link")).unwrap();
        let long = format!("d/{}", "name ".repeat(40));
        std::fs::write(from.path().join(&long), "long").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = ["d", "d/link", "d/run", "missing", &long].map(PathBuf::from);
        pack(format, from.path(), &files, level, file.as_file(), &StopToken::new()).unwrap();

        let to = tempfile::tempdir().unwrap();
        let skipped = Extraction::new(to.path().to_owned()).run(file.reopen().unwrap(), &StopToken::new()).unwrap();
        assert_eq!(skipped.lines().count(), 0, "{format:?}");
        let metadata = std::fs::metadata(to.path().join("d/run")).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join("d/link")).unwrap(), "content", "{format:?}");
        assert_eq!(std::fs::read_to_string(to.path().join(&long)).unwrap(), "long", "{format:?}");
        assert_eq!(metadata.mode() & 0o777, 0o750, "{format:?}");
        assert_eq!(metadata.mtime(), 1_700_000_001, "{format:?}");
    }

    /// A job can replace a file with a FIFO during the packing, which must not wait for a writer.
    #[test]
    fn file_replaced_by_fifo_while_packed_does_not_block() {
        use rustix::fs::{CWD, FileType, RenameFlags, mknodat, renameat_with};
        let from = tempfile::tempdir().unwrap();
        let (file, fifo) = (from.path().join("file"), from.path().join("fifo"));
        std::fs::write(&file, "content").unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (report_end, all_packed) = std::sync::mpsc::channel();
        let (ended, root) = (std::sync::Arc::clone(&done), from.path().to_owned());
        std::thread::spawn(move || {
            for round in 0..3000 {
                let target = tempfile::tempfile().unwrap();
                let format = [Format::Zip, Format::TarZstd, Format::Gzip, Format::Raw][round % 4];
                let _ = pack(format, &root, &["file".into()], Level::Default, &target, &StopToken::new());
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            report_end.send(()).unwrap();
        });
        let swap = std::thread::spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &file, CWD, &fifo, RenameFlags::EXCHANGE).unwrap_or_default();
            }
        });
        all_packed.recv_timeout(std::time::Duration::from_secs(60)).expect("packing must not wait for a writer");
        swap.join().unwrap();
    }

    #[test]
    fn error_of_exceeded_limit_names_the_setting() {
        let from = tempfile::tempdir().unwrap();
        std::fs::write(from.path().join("a"), "12345678").unwrap();
        std::fs::write(from.path().join("b"), "").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = ["a", "b"].map(PathBuf::from);
        pack(Format::Zip, from.path(), &files, Level::Default, file.as_file(), &StopToken::new()).unwrap();
        let to = tempfile::tempdir().unwrap();
        let failed = |limits, limits_from| {
            let extraction = Extraction { limits, limits_from, ..Extraction::new(to.path().to_owned()) };
            extraction.run(file.reopen().unwrap(), &StopToken::new()).unwrap_err()
        };
        let bytes = Limits { bytes: 7, ..Limits::default() };
        let message = "the archive unpacks to more than 7 bytes";
        assert_eq!(
            failed(bytes, LimitsFrom::Config),
            Failure::Step(format!("{message}; to raise the limit, set `max_bytes` of [runners.unpack] in config.toml"))
        );
        assert_eq!(
            failed(bytes, LimitsFrom::CiConfig),
            Failure::Step(format!("{message}; to raise the limit, set `max_bytes` of [unpack] in ci.toml"))
        );
        assert_eq!(
            failed(bytes, LimitsFrom::Flags),
            Failure::Step(format!("{message}; to raise the limit, set --max-bytes"))
        );
        let entries = failed(Limits { entries: 1, ..Limits::default() }, LimitsFrom::Config).to_string();
        assert!(entries.contains("more than 1 entries; to raise the limit, set `max_entries`"), "{entries}");
        let ratio = Limits { ratio: 0, ratio_floor: 0, ..Limits::default() };
        let ratio = failed(ratio, LimitsFrom::Config).to_string();
        assert!(ratio.contains("more than 0 times its size; to raise the limit, set `max_ratio`"), "{ratio}");
        let headers = failed(Limits { header_bytes: 1, ..Limits::default() }, LimitsFrom::Config).to_string();
        let message = "more than 1 bytes of headers; it may be damaged; to raise the limit, set `max_header_bytes`";
        assert!(headers.contains(message), "{headers}");
    }

    /// Reading an empty pipe blocks, like reading from a broken network file system.
    #[tokio::test]
    async fn unreadable_archive_does_not_delay_stopped_job() {
        use crate::transfer::test_support::RecordingContext;
        let (hung, writer) = std::io::pipe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (context, stop) = (RecordingContext::new(dir.path().to_owned()), StopToken::new());
        let (archive, watch, messages) =
            (File::from(std::os::fd::OwnedFd::from(hung)), stop.clone(), context.messages.clone());
        tokio::time::pause();
        let work = tokio::spawn(async move { extract(&context, archive, &watch).await });
        tokio::task::yield_now().await;
        stop.stop(muster_job::TerminationCause::TimedOut);
        for _ in 0..60 {
            tokio::task::yield_now().await;
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        let has_ended = work.is_finished();
        drop(writer);
        assert!(has_ended, "the step must end within a minute of the stop");
        assert_eq!(work.await.unwrap(), Err(Failure::Stopped(muster_job::TerminationCause::TimedOut)));
        let messages = messages.lock().join("\n");
        assert!(
            messages.contains("did not end within 5 s after the stop") && messages.contains("file system"),
            "{messages}"
        );
    }

    #[test]
    fn unsupported_archive_fails_the_step() {
        let to = tempfile::tempdir().unwrap();
        let run =
            |bytes: &[u8]| Extraction::new(to.path().to_owned()).run(archive(bytes), &StopToken::new()).unwrap_err();
        assert_eq!(
            run(b"\x1f\x8b\x08"),
            Failure::Step("the archive is a gzip file, which is not supported".to_owned())
        );
        for bytes in [&b""[..], b"hello", b"PK\x03\x04", b"\x28\xb5\x2f\xfd\x00"] {
            let failure = run(bytes);
            assert!(
                matches!(&failure, Failure::Step(message) if message.contains("failed to read the archive")),
                "{failure:?}"
            );
        }
    }
}
