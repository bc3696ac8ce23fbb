//! Tests with hostile and ordinary archives and directories.

mod attacks;
mod bombs;
mod directories;
mod everyday;
mod fuzz;
mod random;

use std::fs;
use std::io::{Cursor, Seek, Write};
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

/// A directory `root` beside `canary/keys`, which nothing may change.
struct Sandbox {
    outer: TempDir,
}

impl Sandbox {
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir_all(outer.path().join("root")).unwrap();
        fs::create_dir_all(outer.path().join("canary/empty")).unwrap();
        fs::write(outer.path().join("canary/keys"), "secret").unwrap();
        Self { outer }
    }

    fn root(&self) -> PathBuf {
        self.outer.path().join("root")
    }

    fn canary(&self) -> PathBuf {
        self.outer.path().join("canary")
    }

    /// Opens the root. Follows no links below `outer`, as if jobs could create links there.
    fn open_root(&self) -> cap_std::fs::Dir {
        create_root(&self.root(), &Root::Below(self.outer.path().to_owned())).unwrap()
    }

    fn unpack(&self, format: Format, archive: &[u8], limits: &Limits) -> Result<Vec<String>, UnpackError> {
        let root = self.open_root();
        let skipped = unpack(&temporary_file(archive), &root, limits, format, &|| false)?;
        Ok(skipped.lines().collect())
    }

    /// Unpacks a hostile archive. Nothing outside of the root may change.
    fn unpack_checked(&self, format: Format, archive: &[u8]) -> Result<Vec<String>, UnpackError> {
        let before = self.outside();
        let result = self.unpack(format, archive, &Limits::default());
        assert_eq!(self.outside(), before, "nothing outside of the root may change: {result:?}");
        result
    }

    /// Describes the files outside of the root, with every attribute that an archive could change.
    fn outside(&self) -> Vec<String> {
        let mut found = Vec::new();
        describe(self.outer.path(), Some(&self.root()), &mut found);
        found
    }

    /// Returns names, kinds and contents of the files in the root.
    fn inside(&self) -> Vec<String> {
        let mut found = Vec::new();
        names(&self.root(), &self.root(), &mut found);
        found
    }
}

fn temporary_file(archive: &[u8]) -> fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    file.rewind().unwrap();
    file
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn describe(path: &Path, except: Option<&Path>, found: &mut Vec<String>) {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::symlink_metadata(path).unwrap();
    // Reading changes the access time, so it is left out.
    let attributes = (metadata.mode(), metadata.ino(), metadata.nlink(), metadata.mtime(), metadata.mtime_nsec());
    let content = if metadata.is_file() { fs::read(path).unwrap() } else { Vec::new() };
    found.push(format!("{} {attributes:?} {content:?}", path.display()));
    if metadata.is_dir() {
        children(path).iter().filter(|child| except != Some(child)).for_each(|child| describe(child, None, found));
    }
}

fn names(root: &Path, dir: &Path, found: &mut Vec<String>) {
    for path in children(dir) {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            found.push(format!("{name}/"));
            names(root, &path, found);
        } else if metadata.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
        } else {
            found.push(format!("{name}: {}", fs::read_to_string(&path).unwrap()));
        }
    }
}

#[derive(Debug, Clone)]
struct Item {
    name: String,
    kind: EntryType,
    mode: u32,
    /// Target of a link, or content.
    content: String,
}

fn item(kind: EntryType, name: &str, content: &str) -> Item {
    Item { name: name.to_owned(), kind, mode: 0o755, content: content.to_owned() }
}

fn file(name: &str, content: &str) -> Item {
    item(EntryType::Regular, name, content)
}

fn directory(name: &str) -> Item {
    item(EntryType::Directory, name, "")
}

fn link(name: &str, target: &str) -> Item {
    item(EntryType::Symlink, name, target)
}

/// Returns a zip archive, which ends after the first FIFO or device. Skips names that the writer rejects.
fn zip(items: &[Item]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for item in items {
        let options = SimpleFileOptions::default().unix_permissions(item.mode);
        let special = match item.kind {
            EntryType::Fifo => 0o010_000,
            EntryType::Char => 0o020_000,
            _ => 0,
        };
        let added = match item.kind {
            EntryType::Directory => zip.add_directory(&*item.name, options),
            EntryType::Symlink => zip.add_symlink(&*item.name, &*item.content, options),
            _ => zip.start_file(&*item.name, options),
        };
        if added.is_ok() && !matches!(item.kind, EntryType::Directory | EntryType::Symlink) {
            zip.write_all(item.content.as_bytes()).unwrap();
        }
        if added.is_ok() && special != 0 {
            let bytes = zip.finish().unwrap().into_inner();
            return with_kind(bytes, special);
        }
    }
    zip.finish().unwrap().into_inner()
}

/// Sets the file type in the mode of the last header of a zip archive.
fn with_kind(mut bytes: Vec<u8>, kind: u32) -> Vec<u8> {
    let header = bytes.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    let mode = u32::from(u16::from_le_bytes([bytes[header + 40], bytes[header + 41]]));
    let mode = u16::try_from(mode & 0o7777 | kind).unwrap();
    bytes[header + 40..header + 42].copy_from_slice(&mode.to_le_bytes());
    bytes
}

/// Returns a tar archive with unchanged names and targets.
fn tar(items: &[Item]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_gnu();
        header.set_entry_type(item.kind);
        header.set_mode(item.mode);
        header.set_mtime(1_700_000_000);
        let is_link = matches!(item.kind, EntryType::Symlink | EntryType::Link);
        let content: &[u8] = if is_link { b"" } else { item.content.as_bytes() };
        header.set_size(content.len() as u64);
        // The builder rejects hostile names, so they are written directly.
        let mut long = |kind, text: &str| {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(text.len() as u64 + 1);
            header.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
            header.set_cksum();
            builder.append(&header, &*[text.as_bytes(), b"\0"].concat()).unwrap();
        };
        if item.name.len() > 100 || item.name.is_empty() {
            long(EntryType::GNULongName, &item.name);
        } else {
            header.as_old_mut().name[..item.name.len()].copy_from_slice(item.name.as_bytes());
        }
        if is_link && item.content.len() > 100 {
            long(EntryType::GNULongLink, &item.content);
        } else if is_link {
            header.as_old_mut().linkname[..item.content.len()].copy_from_slice(item.content.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn tar_zstd(items: &[Item]) -> Vec<u8> {
    zstd::encode_all(&*tar(items), 1).unwrap()
}

fn tar_gzip(items: &[Item]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar(items)).unwrap();
    gzip.finish().unwrap()
}

type WriteItems = fn(&[Item]) -> Vec<u8>;

const FORMATS: [(Format, WriteItems); 4] =
    [(Format::Zip, zip), (Format::Tar, tar), (Format::TarZstd, tar_zstd), (Format::TarGzip, tar_gzip)];
