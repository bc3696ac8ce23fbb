//! Unpacks archives into the directory of a job or command.

use std::fs::File;

use muster_steps::failure::Failure;
use muster_steps::stop::Stop;

use crate::blocking::blocking;
use crate::site::{Site, Tone};

/// Unpacks an archive into the root of `site`, and prints a warning for each entry that is skipped.
///
/// # Errors
/// As for [`Extraction::run`].
pub async fn extract(site: &dyn Site, archive: File, stop: &Stop) -> Result<(), Failure> {
    let (extraction, watch) = (site.extraction(), stop.clone());
    let left_out = blocking(site, "unpacking an archive", stop, move || extraction.run(archive, &watch)).await?;
    left_out.lines().for_each(|line| site.tell(Tone::Warning, &line));
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
    fn what_is_packed_is_unpacked_in_every_format() {
        for format in [Format::Zip, Format::ZipZstd, Format::TarZstd] {
            for level in ["fastest", "default", "slowest"] {
                there_and_back(format, Level::from_name(Some(level)));
            }
        }
    }

    fn there_and_back(format: Format, level: Level) {
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
        let files = ["d", "d/link", "d/run", "gone", &long].map(PathBuf::from);
        pack(format, from.path(), &files, level, file.as_file(), &Stop::new()).unwrap();

        let to = tempfile::tempdir().unwrap();
        let left_out = Extraction::new(to.path().to_owned()).run(file.reopen().unwrap(), &Stop::new()).unwrap();
        assert_eq!(left_out.lines().count(), 0, "{format:?}");
        let metadata = std::fs::metadata(to.path().join("d/run")).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join("d/link")).unwrap(), "content", "{format:?}");
        assert_eq!(std::fs::read_to_string(to.path().join(&long)).unwrap(), "long", "{format:?}");
        assert_eq!(metadata.mode() & 0o777, 0o750, "{format:?}");
        assert_eq!(metadata.mtime(), 1_700_000_001, "{format:?}");
    }

    /// A job can replace a file by a FIFO while it is packed. Packing may fail then, but must not wait for a writer.
    #[test]
    fn a_file_that_becomes_a_fifo_while_it_is_packed_holds_up_nobody() {
        use rustix::fs::{CWD, FileType, RenameFlags, mknodat, renameat_with};
        let from = tempfile::tempdir().unwrap();
        let (file, fifo) = (from.path().join("file"), from.path().join("fifo"));
        std::fs::write(&file, "content").unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let (ended, root) = (std::sync::Arc::clone(&done), from.path().to_owned());
        std::thread::spawn(move || {
            for round in 0..3000 {
                let target = tempfile::tempfile().unwrap();
                let format = [Format::Zip, Format::TarZstd, Format::Gzip, Format::Raw][round % 4];
                let _ = pack(format, &root, &["file".into()], Level::Default, &target, &Stop::new());
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            tell.send(()).unwrap();
        });
        let swap = std::thread::spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &file, CWD, &fifo, RenameFlags::EXCHANGE).unwrap_or_default();
            }
        });
        told.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for a writer");
        swap.join().unwrap();
    }

    #[test]
    fn a_limit_that_is_exceeded_names_its_value_and_what_raises_it() {
        let from = tempfile::tempdir().unwrap();
        std::fs::write(from.path().join("a"), "12345678").unwrap();
        std::fs::write(from.path().join("b"), "").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = ["a", "b"].map(PathBuf::from);
        pack(Format::Zip, from.path(), &files, Level::Default, file.as_file(), &Stop::new()).unwrap();
        let to = tempfile::tempdir().unwrap();
        let failed = |limits, limits_from| {
            let extraction = Extraction { limits, limits_from, ..Extraction::new(to.path().to_owned()) };
            extraction.run(file.reopen().unwrap(), &Stop::new()).unwrap_err()
        };
        let bytes = Limits { bytes: 7, ..Limits::default() };
        let message = "the archive unpacks to more than 7 bytes";
        assert_eq!(
            failed(bytes, LimitsFrom::Config),
            Failure::Step(format!("{message}; `max_bytes` of [runners.unpack] in config.toml raises the limit"))
        );
        assert_eq!(
            failed(bytes, LimitsFrom::CiConfig),
            Failure::Step(format!("{message}; `max_bytes` of [unpack] in ci.toml raises the limit"))
        );
        assert_eq!(failed(bytes, LimitsFrom::Flags), Failure::Step(format!("{message}; --max-bytes raises the limit")));
        let entries = failed(Limits { entries: 1, ..Limits::default() }, LimitsFrom::Config).to_string();
        assert!(entries.contains("more than 1 entries; `max_entries`"), "{entries}");
        let ratio = Limits { ratio: 0, ratio_floor: 0, ..Limits::default() };
        let ratio = failed(ratio, LimitsFrom::Config).to_string();
        assert!(ratio.contains("more than 0 times its size; `max_ratio`"), "{ratio}");
        let headers = failed(Limits { header_bytes: 1, ..Limits::default() }, LimitsFrom::Config).to_string();
        assert!(headers.contains("more than 1 bytes of headers; it may be damaged; `max_header_bytes`"), "{headers}");
    }

    /// Reading a pipe without a writer blocks, like reading from a network file system whose server is down.
    #[tokio::test]
    async fn an_archive_that_cannot_be_read_holds_up_no_job_that_is_stopped() {
        use crate::site::test_support::Here;
        let (hung, writer) = std::io::pipe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (site, stop) = (Here::new(dir.path().to_owned()), Stop::new());
        let (archive, watch, told) = (File::from(std::os::fd::OwnedFd::from(hung)), stop.clone(), site.told.clone());
        tokio::time::pause();
        let work = tokio::spawn(async move { extract(&site, archive, &watch).await });
        tokio::task::yield_now().await;
        stop.stop(muster_job::TerminationCause::TimedOut);
        for _ in 0..60 {
            tokio::task::yield_now().await;
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        let has_ended = work.is_finished();
        drop(writer);
        assert!(has_ended, "a minute after the stop it still waits for the file");
        assert_eq!(work.await.unwrap(), Err(Failure::Stopped(muster_job::TerminationCause::TimedOut)));
        let told = told.lock().join("\n");
        assert!(told.contains("did not end within 5 s after the stop") && told.contains("file system"), "{told}");
    }

    #[test]
    fn gzip_and_anything_else_are_failures_of_the_step() {
        let to = tempfile::tempdir().unwrap();
        let run = |bytes: &[u8]| Extraction::new(to.path().to_owned()).run(archive(bytes), &Stop::new()).unwrap_err();
        assert_eq!(
            run(b"\x1f\x8b\x08"),
            Failure::Step("the archive is a gzip file, which cannot be unpacked".to_owned())
        );
        for bytes in [&b""[..], b"hello", b"PK\x03\x04", b"\x28\xb5\x2f\xfd\x00"] {
            let failure = run(bytes);
            assert!(matches!(&failure, Failure::Step(why) if why.contains("cannot be read")), "{failure:?}");
        }
    }
}
